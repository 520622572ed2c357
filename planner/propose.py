"""Our proposal: candidate strategies for a data set, from sampled batches.

1. For each of some sampled batches: the time at which the relaxation over all strategies just fits
   the GPUs, its fractional pipeline counts rounded, and a local search judged by real placement.
2. Every strategy found is judged on more sampled batches.
3. Those are kept that together leave the least mean time of the best kept strategy per batch.

Every evaluated batch also gets a lower bound over all strategies that the profile allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.planner.batch import Batch
from seqplan.planner.bounds import relaxed_bound_ms, single_bound_ms
from seqplan.planner.dispatch import TOLERANCE, dispatch
from seqplan.planner.fill import Filler, Filling
from seqplan.planner.fleet import Fleet, PipelineClass
from seqplan.planner.relax import Relaxation, relax
from seqplan.planner.tailor import Models, improve, rounded_strategies
from seqplan.plans.scheme import Scheme, Strategy

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""

SEARCH_ROUNDS = 12
"""Accepted exchanges of the local search per sampled batch."""

RUNGS = (1.01, 1.03, 1.08, 1.2, 1.5, 2.0, 4.0)
"""Times, relative to the best known for a batch, at which a strategy is tried on it."""

EXACT_BELOW = 1.03
"""Strategies this close to a batch's best are searched to their least time there."""


@dataclass(frozen=True)
class Effort:
    """How many batches are searched and judged, and how many candidates are kept."""

    searched: int = 32
    judged: int = 64
    kept: int = 10
    pool: int = 64


@dataclass(frozen=True)
class Proposed:
    """A kept strategy: ``expected_ms`` over the judged batches it can run, and how often it won.

    ``runs``: share of the judged batches it can run; ``wins``: share on which it is the best kept.
    """

    strategy: Strategy
    max_sequence: int
    expected_ms: float
    runs: float
    wins: float


@dataclass(frozen=True)
class Proposal:
    """Kept candidates and what they are worth: means over the judged batches, in ms.

    ``expected_ms``: best kept strategy per batch; ``pool_ms``: best of all strategies found;
    ``lower_bound_ms``: proven, over all strategies of these schemes and GPUs.
    """

    candidates: tuple[Proposed, ...]
    expected_ms: float
    pool_ms: float
    lower_bound_ms: float
    judged: int
    explored: int


def propose(
    batches: Sequence[Batch],
    models: Models,
    gpus: int,
    max_len: int,
    effort: Effort,
    progress: Progress | None = None,
) -> Proposal:
    """Propose strategies for data like ``batches``; the first ``effort.searched`` are searched.

    At least one kept candidate holds ``max_len`` tokens. Raises ``ValueError`` when no scheme does.
    """
    report = progress or (lambda stage, done, total: None)
    pool: dict[Strategy, int] = {}
    searched = batches[: effort.searched]
    for done, batch in enumerate(searched):
        report("searching strategies", done, len(searched))
        for strategy in search(batch, models, gpus, pool):
            pool[strategy] = pool.get(strategy, 0) + 1
    report("searching strategies", len(searched), len(searched))
    ranked = sorted(pool, key=lambda s: (-pool[s], str(s)))[: effort.pool]
    if not any(_reach(s, models) >= max_len for s in ranked):
        longest = Batch.of_lengths([max_len, *batches[0].lengths])
        ranked = [*ranked[: effort.pool - 1], *search(longest, models, gpus, pool)[:1]]
    judged = batches[: effort.judged]
    return judge(ranked, judged, models, gpus, max_len, effort.kept, report)


def search(
    batch: Batch, models: Models, gpus: int, known: Sequence[Strategy] | dict[Strategy, int] = ()
) -> list[Strategy]:
    """The best strategy found for one batch, first, and the starts it came from.

    ``known``: strategies found before, tried as further starts by a single fill each.
    """
    schemes = sorted(models)
    classes = [PipelineClass.of(models[scheme], 1) for scheme in schemes]
    lower = single_bound_ms(classes, batch)
    relaxed, at = fitting_time(classes, batch, gpus, lower)
    pipelines = relaxed.pipelines / max(relaxed.scale, 1e-9)
    starts = rounded_strategies(schemes, pipelines, models, gpus, batch.longest)
    best: tuple[Fleet, Filling] | None = None
    for strategy in dict.fromkeys([*starts, *known]):
        fleet = Fleet.of(strategy, models)
        if fleet.max_sequence < batch.longest:
            continue
        filler = Filler(fleet, batch)
        limit = float("inf") if best is None else best[1].objective_ms * (1 - TOLERANCE)
        filling = dispatch(filler, max(lower, at)) if best is None else filler.fill(limit)
        if filling is not None and filling.objective_ms <= limit:
            best = (fleet, filling)
    if best is None:
        return []
    active = [s for s, n in zip(schemes, pipelines, strict=True) if n > 1e-6]
    active += [s for s in _useful(batch, models) if s not in active]
    fleet, _ = improve(
        batch, best, models, active, gpus, max(lower, at * (1 - TOLERANCE)), rounds=SEARCH_ROUNDS
    )
    return list(dict.fromkeys([fleet.strategy, best[0].strategy]))


def fitting_time(
    classes: Sequence[PipelineClass], batch: Batch, gpus: int, lower_ms: float
) -> tuple[Relaxation, float]:
    """The relaxation at (about) the least time at which it fits ``gpus``, and that time (ms).

    Raises ``ValueError`` when a sequence fits no class.
    """
    if not np.isfinite(lower_ms):
        limit = max(item.capacity for item in classes)
        raise ValueError(f"a sequence of {batch.longest} tokens exceeds every scheme's {limit}")
    time, best = lower_ms * (1 + 1e-9), None
    low = lower_ms
    for _ in range(12):
        relaxed = relax(classes, batch, time, gpus)
        if relaxed is None:
            low, time = time, time * 1.5
            continue
        if relaxed.scale <= 1:
            best = (relaxed, time)
            if relaxed.scale > 0.995 or time <= lower_ms * (1 + 1e-6):
                break
        else:
            low = time
        guess = time * relaxed.scale ** (0.97 if relaxed.scale < 1 else 1.03)
        time = max(guess, low * 1.001, lower_ms * (1 + 1e-9))
        if best is not None and time >= best[1]:
            break
    if best is None:
        relaxed = relax(classes, batch, time, gpus)
        if relaxed is None:
            raise ValueError(f"no scheme runs the longest sequence of {batch.longest} tokens")
        best = (relaxed, time)
    return best


def judge(
    strategies: Sequence[Strategy],
    batches: Sequence[Batch],
    models: Models,
    gpus: int,
    max_len: int,
    kept: int,
    report: Progress,
) -> Proposal:
    """Judge strategies on batches and keep the few that serve them best together."""
    schemes = sorted(models)
    classes = [PipelineClass.of(models[scheme], 1) for scheme in schemes]
    fleets = [Fleet.of(strategy, models) for strategy in strategies]
    times = np.full((len(strategies), len(batches)), np.inf)
    bounds = np.empty(len(batches))
    order = list(range(len(fleets)))
    for j, batch in enumerate(batches):
        report("judging strategies", j, len(batches))
        lower = single_bound_ms(classes, batch)
        relaxed, at = fitting_time(classes, batch, gpus, lower)
        bounds[j] = relaxed_bound_ms(classes, batch, relaxed, lower, at, gpus)
        best = np.inf
        for i in order:
            if fleets[i].max_sequence < batch.longest:
                continue
            filler = Filler(fleets[i], batch)
            filling = _judge_one(filler, max(lower, bounds[j]), best)
            if filling is not None:
                times[i, j] = filling.objective_ms
                best = min(best, filling.objective_ms)
        order.sort(key=lambda i: times[i, j])  # the next batch begins with what served this one
    report("judging strategies", len(batches), len(batches))
    chosen = _keep(times, [fleet.max_sequence >= max_len for fleet in fleets], kept)
    of_chosen = times[chosen]
    winner = of_chosen.argmin(axis=0)
    candidates = tuple(
        Proposed(
            strategies[i],
            fleets[i].max_sequence,
            float(np.mean(row[np.isfinite(row)])) if np.isfinite(row).any() else float("nan"),
            float(np.isfinite(row).mean()),
            float((winner == place).mean()),
        )
        for place, (i, row) in enumerate(zip(chosen, of_chosen, strict=True))
    )
    return Proposal(
        candidates,
        float(of_chosen.min(axis=0).mean()),
        float(times.min(axis=0).mean()),
        float(bounds.mean()),
        len(batches),
        len(strategies),
    )


def _judge_one(filler: Filler, lower_ms: float, best_ms: float) -> Filling | None:
    """A strategy's time on a batch: exact where it comes close to the best, rough beyond."""
    if not np.isfinite(best_ms):
        return dispatch(filler, lower_ms)
    for rung in RUNGS:
        filling = filler.fill(max(lower_ms, best_ms * rung))
        if filling is not None:
            if rung <= EXACT_BELOW:
                return dispatch(filler, lower_ms, known=filling)
            return filling
    return dispatch(filler, best_ms * RUNGS[-1])


def _keep(times: npt.NDArray[np.float64], holds: Sequence[bool], kept: int) -> list[int]:
    """Greedy k-median: strategies whose best per batch has the least mean; one holds max_len.

    Stops early when a further strategy gains less than 0.01 %.
    """
    chosen: list[int] = []
    best = np.full(times.shape[1], np.inf)
    penalty = 10 * float(times[np.isfinite(times)].max()) if np.isfinite(times).any() else 1.0
    capped = np.minimum(times, penalty)
    while len(chosen) < min(kept, len(times)):
        means = np.minimum(best, capped).mean(axis=1)
        pick = int(means.argmin())
        if chosen and means[pick] > best.mean() * (1 - 1e-4):
            break
        chosen.append(pick)
        best = np.minimum(best, capped[pick])
    if not any(holds[i] for i in chosen):
        able = [i for i in range(len(times)) if holds[i]]
        if able:
            chosen = [*chosen[: kept - 1], min(able, key=lambda i: float(capped[i].mean()))]
    return chosen


def _reach(strategy: Strategy, models: Models) -> int:
    return max(models[scheme].max_sequence for scheme, _ in strategy.counts)


def _useful(batch: Batch, models: Models) -> list[Scheme]:
    """Schemes that are the cheapest in GPU-time for some length of the batch, or its fastest."""
    lengths = batch.distinct
    rows, schemes = [], sorted(models)
    for scheme in schemes:
        model = models[scheme]
        cost = scheme.gpus * (
            model.latency.work_ms(lengths) + model.latency.c * lengths / model.capacity
        )
        rows.append(np.where(lengths <= model.max_sequence, cost, np.inf))
    cheapest = np.argmin(np.stack(rows), axis=0)
    return [schemes[k] for k in np.unique(cheapest)]
