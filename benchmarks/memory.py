"""Recomputation modes by micro-batch, compared with one mode for the whole run.

Whole iterations with sync on derived profiles: the best static scheme, and plans, each in the best
mode of all; then plans and the best static scheme whose micro-batches have modes.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.each_strategy import each_strategy_bound_ms
from benchmarks.planning import PlannedSteps, draw_batches, plan_steps, time_cpu
from benchmarks.settings import Data, Lengths
from benchmarks.tables import Cells, Output, Table
from seqplan import Batch, Infeasible, Profile, Proposal, StepPlanner, Workload, make_proposal
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.derived.model_profiles import derive_model_profile
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.model_sizes import ModelSizes
from seqplan.planner.bounds.certificate import certify
from seqplan.planner.bounds.with_sync import Families
from seqplan.planner.execution import ExecutionKind
from seqplan.planner.placement.fleet import Fleet
from seqplan.planner.proposal.uniform import find_uniform_scheme
from seqplan.planner.step.selection import select
from seqplan.planner.strategies.homogeneous import homogeneous_strategies
from seqplan.planner.strategies.regrouping import make_regroup_layouts
from seqplan.planner.sync.choice import choose_sync

STEPS, NODES = 4, 8

REPEATS = 3
"""Proposals of one mode and of all in turns; the least CPU time of each counts."""

HOST_BYTES = 100e9
"""Host memory for the activations of a GPU, where modes may offload."""


K = 1024


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


def read_settings() -> list[Setting]:
    """Read ``memory.csv``; an empty field is None."""
    settings = []
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            gpus, tokens, context = (int(row[name]) for name in ("gpus", "tokens", "context"))
            static, one, uniform = (
                float(row[name]) if row[name] else None for name in ("static", "one", "uniform")
            )
            execution: Any = row["execution"] or None
            goals = Goals(static, one, uniform, float(row["above"]))
            where = row["model"], row["device"], gpus, tokens, row["data"], context
            settings.append(Setting(*where, goals, execution))
    return settings


def compare_modes(data: Sequence[Data], only: str = "", settings: Sequence[Setting] = ()) -> Output:
    """Compare iterations (s) of the settings whose names begin with ``only``."""
    every = settings or read_settings()
    settings = [setting for setting in every if setting.name.startswith(only)]
    if not settings:
        names = ", ".join(setting.name for setting in every)
        raise SystemExit(f"memory has no setting {only!r}; there are {names}")
    lengths = {source.name.partition(" ")[0]: source.lengths for source in data}
    over = "{:.1%} → {:.1%} · {:.0%} | {:.1f} → {:.1f} s, {:.2f} × | {:.0f} → {:.0f} ms"
    table = Table(
        "setting | static | plans of one mode | with modes | static / modes | one / modes"
        " | static / static with modes | modes / modes with offload"
        " | over the bound of all plans: one → modes | CPU of a proposal, one → modes"
        " | CPU of a step, one → modes",
        "{} on {} | {:.2f} {} | {:.2f} {} | {:.3f} | {} | {} | {} | {:.3f} | " + over,
        title=f"Recomputation modes by micro-batch ({STEPS} steps, derived profiles, predicted)",
    )
    for setting in settings:
        if setting.data in lengths:
            table.add(*_compare(setting, lengths[setting.data]))
            print(table.rows[-1], flush=True)
    yield table
    yield "Gains: reached · the most that any plan gains by its bound · the goal."


def _compare(setting: Setting, lengths: Lengths) -> Cells:
    hardware = ClusterHardware(DEVICES[setting.device], NODES, 8)
    with_host = replace(hardware, hardware=replace(hardware.hardware, host_memory_bytes=HOST_BYTES))
    sizes = ModelSizes.from_mapping(MODELS[setting.model])
    profile = derive_model_profile(sizes, hardware, name=f"{setting.model}-{setting.device}")
    source = Data(setting.data, lengths)
    workload = Workload(setting.gpus, setting.context, setting.tokens)
    batches = draw_batches(source, workload, STEPS)
    case = _Case(workload, lengths, batches, setting.execution)
    static: dict[str, float] = {}
    planned: dict[str, _Planned] = {}
    for mode in profile.modes:
        of_mode = profile.keep_modes({mode.name})
        try:
            planned[mode.name] = case.plan(of_mode)
        except Infeasible:
            continue
        if (fastest := case.time_static(of_mode)) is not None:
            static[mode.name] = fastest
    modes = case.plan(profile)
    offloading = case.plan(derive_model_profile(sizes, with_host, name=profile.name))
    uniform_ms = case.time_static(profile)
    assert uniform_ms is not None
    best_static = min(static, key=lambda mode: static[mode])
    best_plans = min(planned, key=lambda mode: planned[mode].mean_ms)
    static_ms, one, goals = static[best_static], planned[best_plans], setting.goals
    of_best = profile.keep_modes({best_plans})
    bound_ms = case.bound(profile, modes)
    one_bound_ms, uniform_bound_ms = case.bound(of_best, one), case.bound_static(profile)
    one_ms, modes_ms = one.proposal_ms, modes.proposal_ms
    for _ in range(REPEATS - 1):
        one_ms = min(one_ms, time_cpu(case.propose, of_best)[1])
        modes_ms = min(modes_ms, time_cpu(case.propose, profile)[1])
    return (
        *(setting.name, setting.device, static_ms / 1e3, best_static),
        *(one.mean_ms / 1e3, best_plans, modes.mean_ms / 1e3),
        _list_gains(static_ms / modes.mean_ms, static_ms / bound_ms, goals.static),
        _list_gains(one.mean_ms / modes.mean_ms, one.mean_ms / bound_ms, goals.one),
        _list_gains(static_ms / uniform_ms, static_ms / uniform_bound_ms, goals.uniform),
        modes.mean_ms / offloading.mean_ms,
        *(one.mean_ms / one_bound_ms - 1, modes.mean_ms / bound_ms - 1, goals.above),
        *(one_ms / 1e3, modes_ms / 1e3, modes_ms / one_ms),
        *(fmean(one.steps.planning_ms), fmean(modes.steps.planning_ms)),
    )


def _list_gains(reached: float, most: float, goal: float | None) -> str:
    """Word a gain, the most that any plan gains, and the goal."""
    return f"{reached:.3f} · {most:.3f} · {'–' if goal is None else f'{goal:.3f}'}"


@dataclass(frozen=True)
class _Planned:
    """Plans of the steps, and CPU time of their proposal (ms)."""

    steps: PlannedSteps
    proposal_ms: float

    @property
    def mean_ms(self) -> float:
        return fmean(self.steps.iterations_ms)


@dataclass(frozen=True)
class _Case:
    """A cluster with lengths and batches, for profiles of several modes."""

    workload: Workload
    lengths: Lengths
    batches: Sequence[Batch]
    execution: ExecutionKind | None

    @property
    def longest(self) -> int:
        return int(min(self.lengths.max(), self.workload.max_len))

    def propose(self, profile: Profile) -> Proposal:
        """Propose strategies with a profile."""
        return make_proposal(profile, self.workload, self.lengths, execution=self.execution)

    def plan(self, profile: Profile) -> _Planned:
        """Propose and plan the batches."""
        proposal, ms = time_cpu(self.propose, profile)
        return _Planned(plan_steps(StepPlanner(proposal).plan, self.batches), ms)

    def time_static(self, profile: Profile) -> float | None:
        """Time the best static scheme with our dispatch and packing, sync included (ms)."""
        sync = choose_sync(profile, self.workload.gpus)
        fastest = find_uniform_scheme(
            profile, self.workload, self.batches, self.longest, sync, lockstep=False
        )
        return None if fastest is None else fastest[1]

    def bound_static(self, profile: Profile) -> float:
        """Bound the mean iteration of the best static scheme, sync included (ms)."""
        gpus, models = self.workload.gpus, self.workload.models(profile)
        sync = choose_sync(profile, gpus)
        means = []
        for strategy in homogeneous_strategies(models, gpus, self.longest):
            fleet = Fleet.from_strategy(strategy, models)
            planned = [select(b, [strategy], models, gpus, tailor=False) for b in self.batches]
            bounds = [
                certify(fleet, batch, selected.placement.objective_ms)
                for batch, selected in zip(self.batches, planned, strict=True)
            ]
            means.append(fmean(bounds) + sync.of_strategy_ms(strategy))
        return min(means)

    def bound(self, profile: Profile, planned: _Planned) -> float:
        """Bound the mean iteration of whole pipelines, and of groups that regroup (ms)."""
        gpus, models = self.workload.gpus, self.workload.models(profile)
        sync = choose_sync(profile, gpus)
        families = Families(models, gpus, sync, similar=0.0)
        regrouping = make_regroup_layouts(models, sync) if self.execution is None else []
        return fmean(
            min(
                [
                    each_strategy_bound_ms(families, batch, time_ms),
                    *(layout.bound_ms(batch, gpus) for layout in regrouping),
                ]
            )
            for batch, time_ms in zip(
                self.batches, planned.steps.iterations_ms.tolist(), strict=True
            )
        )
