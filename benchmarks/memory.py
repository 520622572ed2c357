"""Recomputation modes by micro-batch, compared with one mode for the whole run.

Whole iterations with sync on derived profiles: the best static scheme, and plans, each in the best
mode of all; then plans and the best static scheme whose micro-batches have modes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from benchmarks.each_strategy import each_strategy_bound_ms
from benchmarks.settings import Data, markdown
from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.hardware import ClusterHardware
from seqplan.costs.derived.model_profiles import derive_model_profile
from seqplan.costs.model_sizes import MODELS, ModelSizes
from seqplan.costs.profile import Profile
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.bounds.certificate import certify
from seqplan.planner.bounds.with_sync import Families
from seqplan.planner.errors import Infeasible
from seqplan.planner.execution import ExecutionKind
from seqplan.planner.placement.fleet import Fleet
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.proposal.uniform import find_uniform_scheme
from seqplan.planner.step.selection import select
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.strategies.homogeneous import homogeneous_strategies
from seqplan.planner.strategies.regrouping import make_regroup_layouts
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.workload import Workload

STEPS, NODES = 4, 8

REPEATS = 3
"""Proposals of one mode and of all in turns; the least CPU time of each counts."""

Lengths = npt.NDArray[np.int64]

HOST_BYTES = 100e9
"""Host memory for the activations of a GPU, where modes may offload."""


@dataclass(frozen=True)
class Goals:
    """Least gains over the static run, plans of one mode and, of static plans, over one mode.

    ``above``: the most that plans may exceed the bound of all plans, as a share of it.
    """

    static: float | None
    one: float | None
    uniform: float | None
    above: float


@dataclass(frozen=True)
class Setting:
    """A model on GPUs, tokens of a step, data set and context (tokens).

    ``execution``: of plans; None is the default of a proposal.
    """

    model: str
    device: str
    gpus: int
    tokens: int
    data: str
    context: int
    goals: Goals
    execution: ExecutionKind | None = None

    @property
    def name(self) -> str:
        """Return the name by which ``./run bench memory:NAME`` selects it."""
        tokens = f"{self.tokens // K}k" if self.tokens % K == 0 else f"{self.tokens // 1000}000"
        parts = [self.model, str(self.gpus), tokens, *([self.execution] if self.execution else [])]
        return "-".join([*parts, self.data.lower(), f"{self.context // K}k"])


K = 1024
_LLAMA_8 = ("llama3-8b", "h100-80gb", 8, 256 * K)
_QWEN_64 = ("qwen3-32b", "h100-80gb", 64, 1024 * K)
_LLAMA_64 = ("llama3-70b", "h100-80gb", 64, 1024 * K)
_A800 = ("llama-32b", "a800-80gb", 64, 1024 * K)
_QWEN_16 = ("qwen3-32b", "h100-80gb", 16, 256 * K)
_LLAMA_32 = ("llama3-70b", "h100-80gb", 32, 512 * K)
SETTINGS = (
    Setting(*_LLAMA_8, "Wikipedia", 32 * K, Goals(1.12, 1.0, 1.12, 0.03)),
    Setting(*_LLAMA_8, "Wikipedia", 128 * K, Goals(1.25, 1.003, 1.24, 0.03)),
    Setting(*_LLAMA_8, "code", 32 * K, Goals(1.07, 1.015, 1.07, 0.03)),
    Setting(*_LLAMA_8, "code", 128 * K, Goals(1.18, 1.015, 1.12, 0.03)),
    Setting(*_QWEN_64, "Wikipedia", 32 * K, Goals(1.05, 1.005, None, 0.06)),
    Setting(*_QWEN_64, "Wikipedia", 128 * K, Goals(1.25, 1.17, None, 0.06)),
    Setting(*_QWEN_64, "code", 128 * K, Goals(1.06, 1.06, None, 0.06)),
    Setting(*_LLAMA_64, "Wikipedia", 32 * K, Goals(1.22, 1.15, None, 0.12)),
    Setting(*_LLAMA_64, "code", 32 * K, Goals(1.12, 1.09, None, 0.12)),
    Setting(*_A800, "Wikipedia", 32 * K, Goals(1.1, 1.005, None, 0.03)),
    Setting(*_A800, "Wikipedia", 128 * K, Goals(1.36, 1.22, None, 0.03)),
    Setting(*_A800, "code", 128 * K, Goals(1.035, 1.035, None, 0.03)),
    Setting(
        "llama-32b", "a800-80gb", 64, 200_000, "Wikipedia", 128 * K, Goals(1.29, 1.25, None, 0.03)
    ),
    Setting(*_QWEN_16, "Wikipedia", 32 * K, Goals(None, 1.12, None, 0.06), "static"),
    Setting(*_QWEN_16, "Wikipedia", 128 * K, Goals(None, 1.17, None, 0.06), "static"),
    Setting(*_QWEN_16, "code", 128 * K, Goals(None, 1.07, None, 0.06), "static"),
    Setting(*_LLAMA_32, "Wikipedia", 32 * K, Goals(None, 1.2, None, 0.12), "static"),
    Setting(*_QWEN_16, "Wikipedia", 32 * K, Goals(None, None, None, 0.06)),
    Setting(*_QWEN_16, "Wikipedia", 128 * K, Goals(None, None, None, 0.06)),
    Setting(*_QWEN_16, "code", 128 * K, Goals(None, None, None, 0.06)),
    Setting(*_LLAMA_32, "Wikipedia", 32 * K, Goals(None, None, None, 0.12)),
)
PARTS = tuple(setting.name for setting in SETTINGS)


@dataclass(frozen=True)
class Planned:
    """Iterations of plans (ms), CPU of a proposal (s) and of a step (ms)."""

    times_ms: tuple[float, ...]
    proposal_s: float
    step_ms: float

    @property
    def mean_ms(self) -> float:
        """Return the mean iteration (ms)."""
        return float(np.mean(self.times_ms))


def run(data: Sequence[Data], parts: Sequence[str] = PARTS) -> None:
    """Print iterations of the settings named, in seconds, and their ratios."""
    lengths = {source.name.partition(" ")[0]: source.lengths for source in data}
    rows = []
    for setting in SETTINGS:
        if setting.name in parts and setting.data in lengths:
            rows.append(_row(setting, lengths[setting.data]))
            print(" | ".join(rows[-1]), flush=True)
    print(
        f"\n### Recomputation modes by micro-batch ({STEPS} steps, derived profiles, predicted)\n\n"
        "Gains: reached · the most that any plan gains by its bound · the goal.\n"
    )
    head = [
        "setting",
        "static",
        "plans of one mode",
        "with modes",
        "static / modes",
        "one / modes",
        "static / static with modes",
        "modes / modes with offload",
        "over the bound of all plans: one → modes",
        "CPU of a proposal, one → modes",
        "CPU of a step, one → modes",
    ]
    print(markdown(head, rows) + "\n")


def _row(setting: Setting, lengths: Lengths) -> list[str]:
    hardware = ClusterHardware(DEVICES[setting.device], NODES, 8)
    with_host = replace(hardware, hardware=replace(hardware.hardware, host_memory_bytes=HOST_BYTES))
    sizes = ModelSizes.from_mapping(MODELS[setting.model])
    profile = derive_model_profile(sizes, hardware, name=f"{setting.model}-{setting.device}")
    workload = Workload(setting.gpus, setting.context, setting.tokens)
    sampler = Sampler(lengths, setting.tokens, setting.context, 0)
    batches = list(sampler.batches(STEPS))
    longest = int(sampler.lengths.max())

    def plan(profile: Profile) -> Planned:
        return _plan(profile, workload, lengths, batches, setting.execution)

    static: dict[str, float] = {}
    planned: dict[str, Planned] = {}
    for mode in profile.modes:
        of_mode = profile.keep_modes({mode.name})
        try:
            planned[mode.name] = plan(of_mode)
        except Infeasible:
            continue
        fastest = _static_ms(of_mode, workload, batches, longest)
        if fastest is not None:
            static[mode.name] = fastest
    modes = plan(profile)
    offloading = plan(derive_model_profile(sizes, with_host, name=profile.name))
    uniform_ms = _static_ms(profile, workload, batches, longest)
    assert uniform_ms is not None
    best_static = min(static, key=lambda mode: static[mode])
    best_plans = min(planned, key=lambda mode: planned[mode].mean_ms)
    one = planned[best_plans]
    of_best = profile.keep_modes({best_plans})
    regroup = setting.execution is None
    static_ms, goals = static[best_static], setting.goals
    bound_ms = _bound_ms(profile, workload, batches, modes.times_ms, regroup=regroup)
    if any(
        goal is not None and of_one / modes.mean_ms < goal <= of_one / bound_ms
        for goal, of_one in ((goals.static, static_ms), (goals.one, one.mean_ms))
    ):
        bound_ms = _bound_ms(
            profile, workload, batches, modes.times_ms, regroup=regroup, branch=True
        )
    one_bound_ms = _bound_ms(of_best, workload, batches, one.times_ms, regroup=regroup)
    uniform_bound_ms = _bound_static_ms(profile, workload, batches, longest)
    one_s, modes_s = one.proposal_s, modes.proposal_s
    for _ in range(REPEATS - 1):
        one_s = min(one_s, _time_proposal(of_best, workload, lengths, setting.execution)[1])
        modes_s = min(modes_s, _time_proposal(profile, workload, lengths, setting.execution)[1])
    above = modes.mean_ms / bound_ms - 1
    return [
        f"{setting.name} on {setting.device}",
        f"{static_ms / 1e3:.2f} {best_static}",
        f"{one.mean_ms / 1e3:.2f} {best_plans}",
        f"{modes.mean_ms / 1e3:.3f}",
        _gains(static_ms / modes.mean_ms, static_ms / bound_ms, goals.static),
        _gains(one.mean_ms / modes.mean_ms, one.mean_ms / bound_ms, goals.one),
        _gains(static_ms / uniform_ms, static_ms / uniform_bound_ms, goals.uniform),
        f"{modes.mean_ms / offloading.mean_ms:.3f}",
        f"{one.mean_ms / one_bound_ms - 1:.1%} → {above:.1%} · {goals.above:.0%}",
        f"{one_s:.1f} → {modes_s:.1f} s, {modes_s / one_s:.2f} ×",
        f"{one.step_ms:.0f} → {modes.step_ms:.0f} ms",
    ]


def _gains(reached: float, most: float, goal: float | None) -> str:
    """Word a gain, the most that any plan gains, and the goal."""
    return f"{reached:.3f} · {most:.3f} · {'–' if goal is None else f'{goal:.3f}'}"


def _static_ms(
    profile: Profile, workload: Workload, batches: Sequence[Batch], longest: int
) -> float | None:
    """Time the best static scheme with our dispatch and packing, sync included (ms)."""
    sync = choose_sync(profile, workload.gpus)
    fastest = find_uniform_scheme(profile, workload, batches, longest, sync, lockstep=False)
    return None if fastest is None else fastest[1]


def _bound_static_ms(
    profile: Profile, workload: Workload, batches: Sequence[Batch], longest: int
) -> float:
    """Bound the mean iteration of the best static scheme, sync included (ms)."""
    models, sync = workload.models(profile), choose_sync(profile, workload.gpus)
    means = []
    for strategy in homogeneous_strategies(models, workload.gpus, longest):
        fleet = Fleet.from_strategy(strategy, models)
        planned = [select(b, [strategy], models, workload.gpus, tailor=False) for b in batches]
        bounds = [
            certify(fleet, batch, selected.placement.objective_ms)
            for batch, selected in zip(batches, planned, strict=True)
        ]
        means.append(float(np.mean(bounds)) + sync.of_strategy_ms(strategy))
    return min(means)


def _plan(
    profile: Profile,
    workload: Workload,
    lengths: Lengths,
    batches: Sequence[Batch],
    execution: ExecutionKind | None,
) -> Planned:
    proposal, proposal_s = _time_proposal(profile, workload, lengths, execution)
    planner = StepPlanner(proposal, PlanningOptions())
    start = time.process_time()
    plans = [planner.plan(batch) for batch in batches]
    step_ms = (time.process_time() - start) / len(plans) * 1e3
    times = [plan.predicted_ms + (plan.sync_ms or 0.0) for plan in plans]
    return Planned(tuple(times), proposal_s, step_ms)


def _time_proposal(
    profile: Profile, workload: Workload, lengths: Lengths, execution: ExecutionKind | None
) -> tuple[Proposal, float]:
    """Make a proposal; return it with its CPU time (s)."""
    start = time.process_time()
    proposal = make_proposal(profile, workload, lengths, execution=execution)
    return proposal, time.process_time() - start


def _bound_ms(
    profile: Profile,
    workload: Workload,
    batches: Sequence[Batch],
    times: Sequence[float],
    *,
    regroup: bool,
    branch: bool = False,
) -> float:
    """Bound the mean iteration (ms) of strategies of whole pipelines and of groups that regroup."""
    models, sync = workload.models(profile), choose_sync(profile, workload.gpus)
    families = Families(models, workload.gpus, sync, similar=0.0)
    regrouping = make_regroup_layouts(models, sync) if regroup else []
    bounds = [
        min(
            [
                each_strategy_bound_ms(families, batch, time_ms, branch=branch),
                *(layout.bound_ms(batch, workload.gpus) for layout in regrouping),
            ]
        )
        for batch, time_ms in zip(batches, times, strict=True)
    ]
    return float(np.mean(bounds))
