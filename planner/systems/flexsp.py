"""FlexSP-like: micro-steps of groups of different degrees, by its published solver."""

from __future__ import annotations

from seqplan.planner.batches.batch import Batch
from seqplan.planner.simulation.iteration import Execution
from seqplan.planner.systems.setting import ComparedSystem, Setting, Skipped
from seqplan.plans.plan import PlannedPipeline

NAME = "FlexSP-like"
LIMIT_S = 5.0
"""Time limit of the solver for a step."""


def flexsp_like(setting: Setting, *, limit_s: float = LIMIT_S) -> list[ComparedSystem | Skipped]:
    """Set up the published formulation; with our dispatch on top it would be our micro-steps."""
    if not setting.profile.lockstep:
        why = f"profile {setting.profile.name} has no sequence-parallel schemes under ZeRO-3"
        return [Skipped("flexsp", NAME, why)]
    if all(scheme.sp == 1 for scheme in setting.models):
        why = f"{setting.workload.gpus} GPUs leave no sequence-parallel degree above 1"
        return [Skipped("flexsp", NAME, why)]
    reach = max(m.max_sequence for scheme, m in setting.models.items() if scheme.sp > 1)
    if reach < setting.longest:
        return [Skipped("flexsp", NAME, f"no group holds {setting.longest:,} tokens")]
    return [
        ComparedSystem(
            "flexsp",
            NAME,
            f"groups of 2 and more GPUs by mixed-integer programming, {limit_s:g} s a step",
            False,
            lambda batch: _step(setting, batch, limit_s),
        )
    ]


def _step(setting: Setting, batch: Batch, limit_s: float) -> Execution:
    from seqplan.planner.systems.programs.flexsp_program import flexsp

    solved = flexsp(batch.lengths, setting.models, setting.workload.gpus, time_limit_s=limit_s)
    pipelines: list[PlannedPipeline] = []
    for number, groups in enumerate(solved.micro_steps):
        # Large groups first, so that groups keep to their nodes.
        ordered = sorted(groups, key=lambda group: -group[0].gpus)
        pipelines += setting.pipelines(batch, [(s, [part]) for s, part in ordered], number)
    return Execution((tuple(pipelines),))
