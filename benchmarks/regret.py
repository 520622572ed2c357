"""Losses of plans that were made with wrong costs, over settings of ``whole``.

Plans and the uniform strategy are made with wrong costs and simulated with the true ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from benchmarks.iterations import SETTINGS
from benchmarks.planning import draw_batches
from benchmarks.settings import Data
from benchmarks.tables import Cells, Output, Table
from seqplan import Batch, Profile, Proposal, StepPlanner, Workload, make_proposal
from seqplan.costs.cost_errors import CostError, list_corners
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.placement.recost import simulate_at_costs_ms
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.strategies.homogeneous import best_homogeneous
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import SyncTimes
from seqplan.planner.systems.setting import Setting
from seqplan.plans.plan import PlannedPipeline

STEPS = 3
GPUS = 64
USED = tuple(
    setting for setting in SETTINGS if setting[1] == GPUS and setting[::3] != ("32b", 800_000)
)
"""Settings of ``whole`` but the slowest, whose proposals for all errors take half an hour."""

SHARE = 0.1
"""Interval of ``--robust``."""

FAR = list_corners(0.3)
"""Errors beyond the interval of ``--robust``."""

ERRORS = (
    *list_corners(0.1),
    *FAR,
    CostError(name="context parallelism +10%", wide=1.1),
    CostError(name="context parallelism -10%", wide=0.9),
    CostError(name="each coefficient within ±10%", spread=0.1, seed=1),
)
"""Errors of the costs that plans are made with."""

ADDED = tuple(CostError(name=f"{ms:g} ms a CP rank unknown", rank_ms=ms) for ms in (0.4, 5.0, 25.0))
"""Errors that the true costs have, and those of the plans lack."""


Steps = list[tuple[tuple[PlannedPipeline, ...], float]]
"""Pipelines and sync (ms) of each step."""

LEAST_GAIN = 0.01
"""Gain from which a part of it is stated: at 16K tokens there is none."""


@dataclass(frozen=True)
class _Case:
    """A setting: its profile, cluster, batches and sync."""

    profile: Profile
    workload: Workload
    source: Data
    batches: tuple[Batch, ...]
    longest: int
    sync: SyncTimes

    def propose(self, profile: Profile) -> Proposal:
        """Propose strategies with a profile."""
        return make_proposal(profile, self.workload, self.source.lengths, sync=self.sync)

    def plan(self, proposal: Proposal, robust: float) -> Steps:
        """Plan the steps of a proposal."""
        planner = StepPlanner(proposal, PlanningOptions(robust=robust))
        plans = [planner.plan(batch) for batch in self.batches]
        return [(plan.pipelines, plan.sync_ms or 0.0) for plan in plans]

    def plan_uniform(self, profile: Profile) -> Steps:
        """Plan the steps on the best static strategy by a profile."""
        models = self.workload.models(profile)
        found = best_homogeneous(self.batches, models, self.workload.gpus, self.sync, self.longest)
        assert found is not None
        setting = Setting(profile, self.workload, self.batches, self.longest, self.sync)
        sync_ms = self.sync.of_strategy_ms(found[0])
        return [
            (next(iter(setting.run_balanced(batch, [found[0]]).phases)), sync_ms)
            for batch in self.batches
        ]

    def time(self, steps: Steps, profile: Profile) -> list[float]:
        """Simulate steps with the costs of a profile (ms)."""
        models = self.workload.models(profile)
        return [
            simulate_at_costs_ms(pipelines, batch.lengths, models, profile.forward_fraction)
            + sync_ms
            for (pipelines, sync_ms), batch in zip(steps, self.batches, strict=True)
        ]


@dataclass(frozen=True)
class _Truth:
    """Mean times with true costs, if plans are made with them (ms)."""

    proposal: Proposal
    best_ms: float
    rival_ms: float

    @classmethod
    def find(cls, case: _Case, profile: Profile) -> _Truth:
        """Plan with the true costs."""
        proposal = case.propose(profile)
        return cls(
            proposal,
            mean(case.time(case.plan(proposal, 0.0), profile)),
            mean(case.time(case.plan_uniform(profile), profile)),
        )


@dataclass(frozen=True)
class _Loss:
    """Gains over the best static strategy, and the worst step over the uniform one made alike."""

    error: str
    full: float
    kept: float
    robust: float | None
    worst: float
    robust_worst: float | None


def measure_regret(
    data: Sequence[Data],
    settings: Sequence[tuple[str, int, int, int]] = USED,
    errors: Sequence[CostError] = ERRORS,
    added: Sequence[CostError] = ADDED,
) -> Output:
    """State, for each data set and error, the part of the gain that survives."""
    for source in data:
        began = time.process_time()
        losses = [loss for setting in settings for loss in _plan(source, setting, errors, added)]
        names = list(dict.fromkeys(loss.error for loss in losses))
        groups = {name: [loss for loss in losses if loss.error == name] for name in names}
        corners = {error.name for error in list_corners(0.1)}
        groups["a, b, c ± 10 %, all"] = [loss for loss in losses if loss.error in corners]
        yield Table(
            "costs of the plans | gain that survives, median | least | worst step over uniform"
            f" | with robust {SHARE:g} | least | worst step over uniform",
            "{} | {:.0%} | {:.0%} | {:+.1%} | {} | {} | {}",
            [_summarize(name, group) for name, group in groups.items() if group],
            f"{source.name}: plans made with wrong costs, {GPUS} GPUs, {STEPS} steps",
        )
        yield f"{time.process_time() - began:.0f} s of CPU time"


def _plan(
    source: Data,
    setting: tuple[str, int, int, int],
    errors: Sequence[CostError],
    added: Sequence[CostError],
) -> list[_Loss]:
    model, gpus, context, tokens = setting
    true = load_shipped(f"llama-{model}-a800-80gb")
    workload = Workload(gpus, context, tokens)
    batches = tuple(draw_batches(source, workload, STEPS))
    longest = int(min(source.lengths.max(), context))
    case = _Case(true, workload, source, batches, longest, choose_sync(true, gpus))
    losses, known = [], _Truth.find(case, true)
    for error in (*errors, *added):
        wrong, truth = (true, error.apply(true)) if error in added else (error.apply(true), true)
        of_truth = known if truth is true else _Truth.find(case, truth)
        proposal = known.proposal if wrong is true else case.propose(wrong)
        uniform = case.time(case.plan_uniform(wrong), truth)
        plain = case.time(case.plan(proposal, 0.0), truth)
        robust = None if error in FAR else case.time(case.plan(proposal, SHARE), truth)
        losses.append(
            _Loss(
                error.name,
                of_truth.rival_ms / of_truth.best_ms - 1,
                of_truth.rival_ms / mean(plain) - 1,
                None if robust is None else of_truth.rival_ms / mean(robust) - 1,
                _worst(plain, uniform),
                None if robust is None else _worst(robust, uniform),
            )
        )
    return losses


def _worst(ours: Sequence[float], uniform: Sequence[float]) -> float:
    return max(mine / theirs - 1 for mine, theirs in zip(ours, uniform, strict=True))


def _summarize(name: str, losses: Sequence[_Loss]) -> Cells:
    gaining = [loss for loss in losses if loss.full >= LEAST_GAIN]
    kept = [loss.kept / loss.full for loss in gaining]
    robust = [loss.robust / loss.full for loss in gaining if loss.robust is not None]
    worst = [loss.robust_worst for loss in losses if loss.robust_worst is not None]
    plain = name, median(kept), min(kept), max(loss.worst for loss in losses)
    if not robust:
        return *plain, "–", "–", "–"
    return *plain, f"{median(robust):.0%}", f"{min(robust):.0%}", f"{max(worst):+.1%}"
