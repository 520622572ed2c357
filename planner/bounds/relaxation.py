"""The relaxation of a step: a small linear program over groups of similar sequences.

It chooses how many pipelines of each class run how many micro-batches, fractions allowed, and which
share of each group they take. Its scale says by how much the pipelines (or GPUs) would have to grow
for the batch to end by a time; its duals give what each sequence is worth, from which a proven
bound is made (``bounds``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.resources import RESOURCES, peak_levels, resources
from seqplan.planner.placement.fleet import Floats, Ints, PipelineClass

_LADDER = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 48, 64)
"""Numbers of micro-batches told apart where all schemes are in play."""


@dataclass(frozen=True)
class Relaxation:
    """The program's solution at one time.

    ``scale``: least factor on the pipelines (or GPUs) for the relaxed batch to fit; ``pipelines``:
    used per class, Σ over V. ``values`` (n,): worth of a sequence of each distinct length;
    ``mixes[k]`` (V, RESOURCES): per class and V = 1 … the weights of its resources in the even
    states, sum 1; ``peak_mixes[k]`` (levels, RESOURCES): the same in the peaked states at
    ``levels`` (lengths in tokens), no rows at pp = 1.
    """

    scale: float
    pipelines: Floats
    values: Floats
    mixes: tuple[Floats, ...]
    peak_mixes: tuple[Floats, ...]
    levels: Ints


def relax(
    classes: Sequence[PipelineClass],
    batch: Batch,
    time_ms: float,
    gpus: int | None = None,
    groups: int = 24,
    singles: int = 8,
) -> Relaxation | None:
    """Solve the program at ``time_ms``; None when a sequence can end by then on no class.

    With ``gpus`` the number of pipelines of each class is free, within that many GPUs; otherwise it
    is the class's count. ``singles`` longest distinct lengths stand alone; the rest form
    ``groups`` of about equal tokens.
    """
    lengths, weights = _group(batch, groups, singles)
    most = [item.most_micro_batches(time_ms) for item in classes]
    if gpus is None:
        ladders = [np.arange(1, top + 1) for top in most]
    else:
        ladders = [np.array(sorted({min(v, top) for v in _LADDER})) for top in most]
    levels = peak_levels(batch.distinct)
    parts = [
        resources(item, ladder, levels, lengths, time_ms)
        for item, ladder in zip(classes, ladders, strict=True)
    ]
    eligible = np.concatenate([part.eligible for part in parts])
    if not eligible.any(axis=0).all():
        return None
    share = np.concatenate([part.share for part in parts])
    sizes = [len(part.share) for part in parts]
    of_class = np.repeat(np.arange(len(classes)), sizes)
    solved = _solve(classes, share, eligible, of_class, weights, gpus)
    if solved is None:
        return None
    scale, used, duals = solved
    by_class = np.split(duals, np.cumsum(sizes)[:-1])
    in_use = np.split(used > 1e-9, np.cumsum(sizes)[:-1])
    pairs = list(zip(ladders, by_class, strict=True))
    values = np.full(len(batch.distinct), np.inf)
    anywhere = values.copy()
    for item, (ladder, dual), active in zip(classes, pairs, in_use, strict=True):
        at_hand = resources(item, ladder, levels, batch.distinct, time_ms)
        cost = np.einsum("vr,vrn->vn", dual, at_hand.share)
        cost[~at_hand.eligible] = np.inf
        np.minimum(values, cost[active].min(axis=0, initial=np.inf), out=values)
        np.minimum(anywhere, cost.min(axis=0), out=anywhere)
    # Worth the least it costs in the states in use, else in any, else (no class takes it) nothing.
    values = np.where(np.isfinite(values), values, anywhere)
    return Relaxation(
        scale,
        np.bincount(of_class, weights=used, minlength=len(classes)).astype(np.float64),
        np.where(np.isfinite(values), values, 0.0),
        tuple(_mixes(ladder, dual[: len(ladder)]) for ladder, dual in pairs),
        tuple(_normalised(dual[len(ladder) :]) for ladder, dual in pairs),
        levels,
    )


@dataclass(frozen=True)
class _Program:
    """The linear program's columns: parts of groups, then pipelines of each state, then the scale.

    A part is an eligible pair: ``part_state`` and ``part_group`` (parts,) say of what.
    """

    part_state: Ints
    part_group: Ints
    states: int

    @property
    def parts(self) -> int:
        return len(self.part_state)

    @property
    def pipelines(self) -> slice:
        """The columns of pipelines, one a state."""
        return slice(self.parts, self.parts + self.states)

    @property
    def columns(self) -> int:
        return self.parts + self.states + 1

    @property
    def resource_rows(self) -> int:
        return self.states * RESOURCES

    def resource_limits(self, share: Floats, weights: Floats) -> list[_Block]:
        """Σ part·weight·share − pipelines ≤ 0, for each resource of each state."""
        taken = share[self.part_state, :, self.part_group] * weights[self.part_group, None]
        rows = np.arange(self.resource_rows)
        of_part = self.part_state[:, None] * RESOURCES + np.arange(RESOURCES)
        return [
            (taken.ravel(), of_part.ravel(), np.repeat(np.arange(self.parts), RESOURCES)),
            (-np.ones(len(rows)), rows, self.parts + rows // RESOURCES),
        ]

    def pipeline_limits(self, sizes: Floats, limit_of: Ints, available: Floats) -> list[_Block]:
        """Σ pipelines·size − available·scale ≤ 0, for each limit; ``limit_of`` is a state's."""
        first = self.resource_rows
        limits = np.arange(len(available))
        return [
            (sizes, first + limit_of, self.parts + np.arange(self.states)),
            (-available, first + limits, np.full(len(limits), self.columns - 1)),
        ]


_Block = tuple[Floats, Ints, Ints]
"""Coefficients of constraints with their rows and columns."""


def _solve(
    classes: Sequence[PipelineClass],
    share: Floats,
    eligible: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    of_class: Ints,
    weights: Floats,
    gpus: int | None,
) -> tuple[float, Floats, Floats] | None:
    """Solve for the least scale: it, pipelines per state, duals of resources (states, RESOURCES).

    ``share`` (states, RESOURCES, groups), ``eligible`` (states, groups), ``of_class`` (states,)
    and ``weights`` (groups,): sequences that a group stands for. Every group is placed whole.
    """
    # Half a second to import, which commands that plan nothing should not wait for.
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    states, groups = eligible.shape
    part_state, part_group = np.nonzero(eligible)
    program = _Program(part_state, part_group, states)
    if gpus is None:
        counts = np.array([item.count for item in classes], dtype=np.float64)
        pipeline_limits = program.pipeline_limits(np.ones(states), of_class, counts)
    else:
        sizes = np.array([item.gpus for item in classes], dtype=np.float64)[of_class]
        one_limit = np.zeros(states, dtype=np.int64)
        pipeline_limits = program.pipeline_limits(sizes, one_limit, np.array([float(gpus)]))
    blocks = [*program.resource_limits(share, weights), *pipeline_limits]
    entries, at_row, at_column = (np.concatenate(block) for block in zip(*blocks, strict=True))
    nonzero = entries != 0
    rows = program.resource_rows + (len(classes) if gpus is None else 1)
    upper = coo_array(
        (entries[nonzero], (at_row[nonzero], at_column[nonzero])), shape=(rows, program.columns)
    ).tocsr()
    parts = np.arange(program.parts)
    placed = coo_array(
        (np.ones(program.parts), (program.part_group, parts)), shape=(groups, program.columns)
    ).tocsr()
    objective = np.zeros(program.columns)
    objective[-1] = 1.0
    solved = linprog(
        objective,
        A_ub=upper,
        b_ub=np.zeros(rows),
        A_eq=placed,
        b_eq=np.ones(groups),
        method="highs-ds",
    )
    if solved.status != 0:
        return None
    marginals = solved.ineqlin.marginals[: program.resource_rows]
    duals = np.maximum(-marginals.reshape(states, RESOURCES), 0.0)
    return float(solved.x[-1]), solved.x[program.pipelines], duals


def _mixes(ladder: Ints, duals: Floats) -> Floats:
    """Weights of the resources for every V up to the ladder's top, interpolated and normalised."""
    every = np.arange(1, int(ladder[-1]) + 1)
    smooth = np.stack([np.interp(every, ladder, column) for column in duals.T], axis=1)
    return _normalised(smooth)


def _normalised(weights: Floats) -> Floats:
    """Rows scaled to a sum of 1; all weight on work where a row has none."""
    total = weights.sum(axis=1, keepdims=True)
    only_work = np.eye(RESOURCES)[0]
    return np.where(total > 0, weights / np.where(total > 0, total, 1.0), only_work)


def _group(batch: Batch, groups: int, singles: int) -> tuple[Ints, Floats]:
    """Representative lengths, descending, and how many sequences each stands for."""
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
