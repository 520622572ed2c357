"""DeepSpeed-like: one Ulysses degree × dp under ZeRO-3, in lockstep micro-steps."""

from __future__ import annotations

from statistics import mean

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.simulation.iteration import Execution, compute_ms
from seqplan.planner.strategies.homogeneous import homogeneous_strategies
from seqplan.planner.systems.setting import ComparedSystem, Setting, Skipped
from seqplan.planner.systems.static_best import best_in_lockstep
from seqplan.planner.systems.windows import first_fit_decreasing
from seqplan.plans.plan import PlannedPipeline
from seqplan.plans.scheme import Strategy

NAME = "DeepSpeed-like"


def deepspeed(setting: Setting) -> list[ComparedSystem | Skipped]:
    """Set up the best degree, with windows assigned round-robin and in our even rounds."""
    if not setting.profile.lockstep:
        why = f"profile {setting.profile.name} has no sequence-parallel schemes under ZeRO-3"
        return [Skipped("deepspeed", NAME, why)]
    gpus = setting.workload.gpus
    times = {
        strategy: mean(
            compute_ms([_micro_steps(setting, batch, strategy)], setting.profile.forward_fraction)
            for batch in setting.batches
        )
        for strategy in homogeneous_strategies(setting.models, gpus, setting.longest)
    }
    even = best_in_lockstep(setting)
    if not times or even is None:
        return [Skipped("deepspeed", NAME, f"no group holds {setting.longest:,} tokens")]
    best = min(times, key=lambda strategy: times[strategy])
    return [
        ComparedSystem(
            "deepspeed",
            NAME,
            f"{best}, the best degree on these batches; first-fit-decreasing windows of what a "
            "group holds, round-robin",
            False,
            lambda batch: Execution((_micro_steps(setting, batch, best),)),
            best,
        ),
        ComparedSystem(
            "deepspeed-balanced",
            f"{NAME}, balanced",
            f"{even}, the best degree on these batches; our dispatch to micro-steps and groups",
            True,
            lambda batch: setting.even_micro_steps(batch, even),
            even,
        ),
    ]


def _micro_steps(setting: Setting, batch: Batch, strategy: Strategy) -> tuple[PlannedPipeline, ...]:
    """Deal a window to each group and micro-step, in the order of the windows."""
    scheme, count = strategy.counts[0]
    pipeline_class = PipelineClass.from_model(setting.models[scheme], 1)
    windows = first_fit_decreasing(batch.lengths, pipeline_class.capacity, pipeline_class.unit)
    micro_steps: list[PlannedPipeline] = []
    for number, first in enumerate(range(0, len(windows), count)):
        work = [(scheme, [window]) for window in windows[first : first + count]]
        micro_steps += setting.pipelines(batch, work, number)
    return tuple(micro_steps)
