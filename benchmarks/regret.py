"""Losses of plans that were made with wrong costs, over settings of ``whole``.

Plans and the uniform strategy are made with wrong costs and simulated with the true ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.iterations import SETTINGS
from benchmarks.planning import draw_batches, plan_steps
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
    CostError(name="context parallelism +10 %", wide=1.1),
    CostError(name="context parallelism -10 %", wide=0.9),
    CostError(name="each coefficient within ±10 %", spread=0.1, seed=1),
)
"""Errors of the costs that plans are made with."""

ADDED = tuple(CostError(name=f"{ms:g} ms a CP rank unknown", rank_ms=ms) for ms in (0.4, 5.0, 25.0))
"""Errors that the true costs have, and those of the plans lack."""


LEAST_GAIN = 0.01
"""Gain from which a part of it is stated: at 16K tokens there is none."""


@dataclass(frozen=True)
class _Case:
    """A setting: its cluster, batches and sync."""

    workload: Workload
    source: Data
    batches: tuple[Batch, ...]
    sync: SyncTimes

    def propose(self, profile: Profile) -> Proposal:
        """Propose strategies with a profile."""
        return make_proposal(profile, self.workload, self.source.lengths, sync=self.sync)

    def time_plans(self, proposal: Proposal, robust: float, truth: Profile) -> list[float]:
        """Plan the steps of a proposal; simulate them with true costs (ms)."""
        planned = plan_steps(
            StepPlanner(proposal, PlanningOptions(robust=robust)).plan, self.batches
        )
        return self._time([(plan.pipelines, plan.sync_ms or 0.0) for plan in planned.plans], truth)

    def time_uniform(self, profile: Profile, truth: Profile) -> list[float]:
        """Plan the steps on the best static strategy by a profile; simulate them (ms)."""
        models, gpus = self.workload.models(profile), self.workload.gpus
        longest = int(min(self.source.lengths.max(), self.workload.max_len))
        best = best_homogeneous(self.batches, models, gpus, self.sync, longest)
        assert best is not None
        setting = Setting(profile, self.workload, self.batches, longest, self.sync)
        phases = [setting.run_balanced(batch, [best[0]]).phases for batch in self.batches]
        sync_ms = self.sync.of_strategy_ms(best[0])
        return self._time([(next(iter(of_step)), sync_ms) for of_step in phases], truth)

    def time_best(self, truth: Profile) -> tuple[Proposal, float, float]:
        """Plan with the true costs: the proposal, and mean steps, ours and uniform (ms)."""
        proposal = self.propose(truth)
        ours, uniform = self.time_plans(proposal, 0.0, truth), self.time_uniform(truth, truth)
        return proposal, fmean(ours), fmean(uniform)

    def _time(
        self, steps: Sequence[tuple[tuple[PlannedPipeline, ...], float]], truth: Profile
    ) -> list[float]:
        """Simulate pipelines and sync of the steps (ms)."""
        models = self.workload.models(truth)
        return [
            simulate_at_costs_ms(pipelines, batch.lengths, models, truth.forward_fraction) + sync_ms
            for (pipelines, sync_ms), batch in zip(steps, self.batches, strict=True)
        ]


@dataclass(frozen=True)
class _Loss:
    """Part of the gain over the best static strategy that survives, None if there is no gain.

    ``worst``: the worst step over that of a uniform strategy with the same costs, less one.
    """

    error: str
    robust: bool
    survives: float | None
    worst: float


def measure_regret(
    data: Sequence[Data],
    settings: Sequence[tuple[str, int, int, int]] = USED,
    errors: Sequence[CostError] = ERRORS,
    added: Sequence[CostError] = ADDED,
) -> Output:
    """State, for each data set and error, the part of the gain that survives."""
    corners = {error.name for error in list_corners(0.1)}
    part = " | gain that survives, median | least | worst step over uniform"
    for source in data:
        began = time.process_time()
        losses = [loss for setting in settings for loss in _plan(source, setting, errors, added)]
        groups = {error.name: {error.name} for error in (*errors, *added)}
        groups["a, b, c ± 10 %, all"] = corners
        yield Table(
            "costs of the plans" + part + part.replace("gain", f"with robust {SHARE:g}: gain"),
            "{}" + " | {} | {} | {}" * 2,
            [
                (name, *_summarize(losses, names, False), *_summarize(losses, names, True))
                for name, names in groups.items()
            ],
            f"{source.name}: plans made with wrong costs, {GPUS} GPUs, {STEPS} steps",
        )
        yield f"{time.process_time() - began:.0f} s of CPU time"


def _plan(
    source: Data,
    setting: tuple[str, int, int, int],
    errors: Sequence[CostError],
    added: Sequence[CostError],
) -> Iterator[_Loss]:
    model, gpus, context, tokens = setting
    true, workload = load_shipped(f"llama-{model}-a800-80gb"), Workload(gpus, context, tokens)
    batches = tuple(draw_batches(source, workload, STEPS))
    case = _Case(workload, source, batches, choose_sync(true, gpus))
    known = case.time_best(true)
    for error in (*errors, *added):
        wrong, truth = (true, error.apply(true)) if error in added else (error.apply(true), true)
        _, best_ms, rival_ms = known if truth is true else case.time_best(truth)
        proposal = known[0] if wrong is true else case.propose(wrong)
        uniform = case.time_uniform(wrong, truth)
        full = rival_ms / best_ms - 1
        for robust in (0.0, *([] if error in FAR else [SHARE])):
            ours = case.time_plans(proposal, robust, truth)
            kept = rival_ms / fmean(ours) - 1
            worst = max(mine / theirs - 1 for mine, theirs in zip(ours, uniform, strict=True))
            survives = kept / full if full >= LEAST_GAIN else None
            yield _Loss(error.name, robust > 0, survives, worst)


def _summarize(losses: Sequence[_Loss], names: set[str], robust: bool) -> Cells:
    of = [loss for loss in losses if loss.error in names and loss.robust is robust]
    kept = [loss.survives for loss in of if loss.survives is not None]
    if not kept:
        return "–", "–", "–"
    return f"{median(kept):.0%}", f"{min(kept):.0%}", f"{max(loss.worst for loss in of):+.1%}"
