"""The relaxation of a step, whose prices prove bounds (``certificate``).

A small linear program over groups of similar sequences chooses how many pipelines of each class run
how many micro-batches, fractions allowed, and which share of each group they take. Its scale is the
factor by which the pipelines (or GPUs) have to grow for the batch to end by a time; its duals give
the value of each sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.held_value import Mixes, Relaxation
from seqplan.planner.bounds.resources import ClassLengths, count_resources
from seqplan.planner.bounds.scale_program import solve_program
from seqplan.planner.placement.fleet import Floats, Ints, PipelineClass

LADDER = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 48, 64)
"""Numbers of micro-batches that are distinguished when all schemes are in play."""


@dataclass(frozen=True)
class _ClassStates:
    """The states of one class in the program: even ones, one for each V of ``ladder``, then peaked.

    ``shares`` (states, resources, groups) of each group of sequences in a pipeline, and whether it
    is ``eligible`` (states, groups).
    """

    ladder: Ints
    shares: Floats
    eligible: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.shares)

    def mixes(self, duals: Floats) -> Mixes:
        """Make mixes of the states' duals (states, resources)."""
        even, peaked = np.split(duals, [len(self.ladder)])
        return Mixes(_interpolate(self.ladder, even), _normalize(peaked))


@dataclass(frozen=True)
class Detail:
    """How fine the program is: groups of sequences, levels of peaked states, and resources.

    ``singles`` longest distinct lengths stand alone, the rest form ``groups``. ``peaks`` longest
    are levels, and ``lower`` ones fall by ``ratio`` each. With ``fine``, levels rise up to MaxLen,
    one more resource counts micro-batches by mode, and ``further`` numbers of them are
    distinguished.
    """

    groups: int = 24
    singles: int = 8
    peaks: int = 6
    lower: int = 4
    ratio: float = 0.75
    fine: bool = False
    further: int = 0


COARSE = Detail()
FINE = Detail(singles=28, peaks=20, lower=8, ratio=0.85, fine=True, further=6)
"""Details of a step's planning, and of bounds that these leave far from the plan."""


def relax(
    classes: Sequence[PipelineClass],
    batch: Batch,
    time_ms: float,
    gpus: int | None = None,
    detail: Detail = COARSE,
) -> Relaxation | None:
    """Solve the program at ``time_ms``; None when a sequence can end by then on no class.

    1. Sequences are put into groups: the longest distinct lengths stand alone, the rest form
       groups of about equal tokens (``group_lengths``).
    2. Each class gets its states, and in each of them the shares of a pipeline's resources that a
       group takes (``ClassLengths``): even states for every useful V, or with ``gpus`` for the V of
       a ladder, and peaked states at a few levels.
    3. The linear program is solved for the least scale (``solve_program``). With ``gpus`` the
       pipelines of each class are free, within that many GPUs; otherwise it is the class's count.
    4. Each distinct length is worth the least that its shares cost at the duals in the states in
       use; if none of them takes it, in any state; if no class takes it, nothing.
    5. The duals become mixes: interpolated to every V, each row scaled to a sum of 1.
    """
    solution = _solve_states(classes, batch, time_ms, gpus, detail)
    if solution is None:
        return None
    of_states = list(zip(solution.states, solution.duals, strict=True))
    number = solution.states[0].shares.shape[1]
    distinct = [
        ClassLengths(k, batch.distinct, batch.multiplicity, solution.levels, number)
        for k in classes
    ]
    costs = [
        _price_lengths(lengths, of_class.ladder, time_ms, dual)
        for lengths, (of_class, dual) in zip(distinct, of_states, strict=True)
    ]
    return Relaxation(
        scale=solution.scale,
        pipelines=solution.pipelines,
        values=_choose_values(costs, [used > 1e-9 for used in solution.used]),
        mixes=tuple(of_class.mixes(dual) for of_class, dual in of_states),
        levels=solution.levels,
        further=detail.further,
    )


@dataclass(frozen=True)
class _States:
    """The states of all classes, and the groups of sequences (``weights``: of how many each).

    ``levels``: of the peaked states (tokens).
    """

    levels: Ints
    weights: Floats
    of_classes: Sequence[_ClassStates]

    @property
    def sizes(self) -> list[int]:
        """Count the states of each class."""
        return [len(of_class) for of_class in self.of_classes]

    def stack(self) -> tuple[Floats, npt.NDArray[np.bool_], Ints]:
        """Stack shares and eligibility of all states, and number their classes (states,)."""
        return (
            np.concatenate([of_class.shares for of_class in self.of_classes]),
            np.concatenate([of_class.eligible for of_class in self.of_classes]),
            np.repeat(np.arange(len(self.of_classes)), self.sizes),
        )


@dataclass(frozen=True)
class _Solution:
    """The program's solution by class: its states, pipelines in each, and duals.

    ``levels``: of the peaked states (tokens); ``used``: pipelines of each state; ``duals``
    (states, resources).
    """

    levels: Ints
    states: Sequence[_ClassStates]
    scale: float
    used: Sequence[Floats]
    duals: Sequence[Floats]

    @property
    def pipelines(self) -> Floats:
        """Return the pipelines of each class (classes,)."""
        sizes = [len(of_class) for of_class in self.states]
        of_class = np.repeat(np.arange(len(sizes)), sizes)
        used = np.bincount(of_class, weights=np.concatenate(self.used), minlength=len(sizes))
        return used.astype(np.float64)


def _make_states(
    classes: Sequence[PipelineClass],
    batch: Batch,
    time_ms: float,
    gpus: int | None,
    detail: Detail,
) -> _States | None:
    """Make the states of the classes; None when a sequence can be in none of them."""
    lengths, weights = group_lengths(batch, detail.groups, detail.singles)
    reach = max(k.capacity for k in classes) if detail.fine else 0
    levels = peak_levels(batch.distinct, detail.peaks, detail.lower, detail.ratio, reach)
    states = []
    number = count_resources(classes, fine=detail.fine)
    for pipeline_class in classes:
        most = pipeline_class.most_micro_batches(time_ms)
        if pipeline_class.least_bubbles:
            most += detail.further
        ladder = _ladder(most, every_v=gpus is None)
        of_lengths = ClassLengths(pipeline_class, lengths, weights, levels, number)
        states.append(_ClassStates(ladder, *of_lengths.shares(ladder, time_ms)))
    if not np.any([of_class.eligible.any(axis=0) for of_class in states], axis=0).all():
        return None
    return _States(levels, weights, states)


def _solve_states(
    classes: Sequence[PipelineClass],
    batch: Batch,
    time_ms: float,
    gpus: int | None,
    detail: Detail,
) -> _Solution | None:
    """Solve the program of the classes' states; None when a sequence can be in none of them."""
    states = _make_states(classes, batch, time_ms, gpus, detail)
    if states is None:
        return None
    solved = solve_program(classes, *states.stack(), states.weights, gpus)
    if solved is None:
        return None
    scale, used, duals = solved
    ends = np.cumsum(states.sizes)[:-1]
    return _Solution(
        states.levels, states.of_classes, scale, np.split(used, ends), np.split(duals, ends)
    )


def peak_levels(
    lengths: Ints, singles: int = 6, others: int = 4, ratio: float = 0.75, reach: int = 0
) -> Ints:
    """Choose levels for the peaked states: the longest of ``lengths`` (descending), then fewer.

    A peak is a sequence alone or nearly so; further levels fall by a ``ratio`` each. Those of
    micro-batches of several sequences rise by it up to ``reach`` (tokens).
    """
    top = lengths[:singles].tolist()
    below = [int(top[-1] * ratio**k) for k in range(1, others + 1)]
    rising = int(np.log(max(reach / top[0], 1.0)) / -np.log(ratio))
    above = [int(top[0] / ratio**k) for k in range(1, rising + 1)]
    return np.array(sorted({0, *top, *below, *above}), dtype=np.int64)


def group_lengths(batch: Batch, groups: int, singles: int) -> tuple[Ints, Floats]:
    """Choose representative lengths, descending, and count how many sequences each stands for."""
    lengths, counts = batch.distinct, batch.multiplicity
    if len(lengths) <= groups + singles:
        return lengths, counts.astype(np.float64)
    tail, tail_counts = lengths[singles:], counts[singles:]
    tokens = np.cumsum(tail * tail_counts)
    label = np.minimum((tokens - 1) * groups // tokens[-1], groups - 1)
    label = np.unique(label, return_inverse=True)[1]
    size = np.bincount(label, weights=tail_counts.astype(np.float64))
    mean = np.bincount(label, weights=(tail * tail_counts).astype(np.float64)) / size
    representative = np.maximum(1, np.rint(mean)).astype(np.int64)
    return (
        np.concatenate([lengths[:singles], representative]),
        np.concatenate([counts[:singles].astype(np.float64), size]),
    )


def _price_lengths(lengths: ClassLengths, ladder: Ints, time_ms: float, duals: Floats) -> Floats:
    """Price each length in each state (states, n); infinite if it cannot be there."""
    share, eligible = lengths.shares(ladder, time_ms, duals[:, None, :])
    cost: Floats = share[:, 0]
    cost[~eligible] = np.inf
    return cost


def _choose_values(costs: Sequence[Floats], in_use: Sequence[npt.NDArray[np.bool_]]) -> Floats:
    """Value each length at its least price in states in use, or in any."""
    pairs = list(zip(costs, in_use, strict=True))
    used = np.min([cost[active].min(axis=0, initial=np.inf) for cost, active in pairs], axis=0)
    anywhere = np.min([cost.min(axis=0) for cost in costs], axis=0)
    values = np.where(np.isfinite(used), used, anywhere)
    return np.where(np.isfinite(values), values, 0.0)


def _ladder(most: int, *, every_v: bool) -> Ints:
    """Return the V up to ``most`` that have a state: each of them, or those of ``LADDER``."""
    if every_v:
        return np.arange(1, most + 1)
    return np.array(sorted({min(v, most) for v in LADDER}))


def _interpolate(ladder: Ints, duals: Floats) -> Floats:
    """Interpolate duals to every V up to the ladder's top, and normalize them to weights."""
    every_v = np.arange(1, int(ladder[-1]) + 1)
    smooth = np.stack([np.interp(every_v, ladder, column) for column in duals.T], axis=1)
    return _normalize(smooth)


def _normalize(weights: Floats) -> Floats:
    """Scale rows to a sum of 1; all weight is on work where a row has none."""
    total = weights.sum(axis=1, keepdims=True)
    only_work = np.eye(weights.shape[1])[0]
    return np.where(total > 0, weights / np.where(total > 0, total, 1.0), only_work)
