"""The relaxation of a step, and the bounds that its prices prove.

A small linear program over groups of similar sequences chooses how many pipelines of each class run
how many micro-batches, fractions allowed, and which share of each group they take. Its scale is the
factor by which the pipelines (or GPUs) have to grow for the batch to end by a time; its duals give
the value of each sequence.

In a pipeline that ends by τ with V micro-batches, the shares that its sequences take of any
resource, or of any weighted mix of them, sum to at most 1; so their values sum to at most the
largest ratio of value to share. If all values together exceed what all pipelines can hold in this
sense, no placement ends by τ. This holds whatever the values and mixes are. A few lengths that the
program has not seen, as it sees similar ones as one group, may be valued above what they take
somewhere: their values are cut to that (``_surplus``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import numpy.typing as npt

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import single_bound_ms
from seqplan.planner.bounds.resources import (
    ROUNDING,
    ClassLengths,
    HeldValue,
    Mixes,
    Relaxation,
    Resources,
    count_resources,
    group_lengths,
    list_fixed_mixes,
    peak_levels,
)
from seqplan.planner.placement.fleet import Fleet, Floats, Ints, PipelineClass

BISECTION_TOLERANCE = 1e-4
"""Relative width of the bisection for the largest refuted time."""

CERTIFY_GAP = 2e-3
"""The gap at which the proof is sought first; above it the prices are refined once."""

_LADDER = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 48, 64)
"""Numbers of micro-batches that are distinguished when all schemes are in play."""


@dataclass(frozen=True)
class _ClassStates:
    """The states of one class in the program: even ones, one for each V of ``ladder``, then peaked.

    ``resources``: the shares of each group of sequences in a pipeline, by state.
    """

    ladder: Ints
    resources: Resources

    def __len__(self) -> int:
        return len(self.resources.share)

    def mixes(self, duals: Floats) -> Mixes:
        """Make mixes of the states' duals (states, resources)."""
        even, peaked = np.split(duals, [len(self.ladder)])
        return Mixes(_interpolate(self.ladder, even), _normalize(peaked))


def relax(
    classes: Sequence[PipelineClass],
    batch: Batch,
    time_ms: float,
    gpus: int | None = None,
    groups: int = 24,
    singles: int = 8,
) -> Relaxation | None:
    """Solve the program at ``time_ms``; None when a sequence can end by then on no class.

    1. Sequences are put into groups: the ``singles`` longest distinct lengths stand alone, the rest
       form ``groups`` of about equal tokens (``group_lengths``).
    2. Each class gets its states, and in each of them the shares of a pipeline's resources that a
       group takes (``ClassLengths``): even states for every useful V, or with ``gpus`` for the V of
       a ladder, and peaked states at a few levels.
    3. The linear program is solved for the least scale (``_solve``). With ``gpus`` the number of
       pipelines of each class is free, within that many GPUs; otherwise it is the class's count.
    4. Each distinct length is worth the least that its shares cost at the duals in the states in
       use; if none of them takes it, in any state; if no class takes it, nothing.
    5. The duals become mixes: interpolated to every V, each row scaled to a sum of 1.
    """
    lengths, weights = group_lengths(batch, groups, singles)
    levels = peak_levels(batch.distinct)
    states = []
    number = count_resources(classes)
    for pipeline_class in classes:
        ladder = _ladder(pipeline_class.most_micro_batches(time_ms), every_v=gpus is None)
        resources = ClassLengths(pipeline_class, lengths, levels, number).resources(ladder, time_ms)
        states.append(_ClassStates(ladder, resources))
    eligible = np.concatenate([of_class.resources.eligible for of_class in states])
    if not eligible.any(axis=0).all():
        return None
    share = np.concatenate([of_class.resources.share for of_class in states])
    sizes = [len(of_class) for of_class in states]
    class_of_state = np.repeat(np.arange(len(classes)), sizes)
    solution = _solve(
        classes,
        share=share,
        eligible=eligible,
        of_class=class_of_state,
        weights=weights,
        gpus=gpus,
    )
    if solution is None:
        return None
    scale, used, duals = solution
    class_duals = np.split(duals, np.cumsum(sizes)[:-1])
    in_use = np.split(used > 1e-9, np.cumsum(sizes)[:-1])
    distinct = [ClassLengths(k, batch.distinct, levels, number) for k in classes]
    costs = [
        _price_lengths(lengths.resources(of_class.ladder, time_ms), dual)
        for lengths, of_class, dual in zip(distinct, states, class_duals, strict=True)
    ]
    pipelines = np.bincount(class_of_state, weights=used, minlength=len(classes))
    return Relaxation(
        scale=scale,
        pipelines=pipelines.astype(np.float64),
        values=_choose_values(costs, in_use),
        mixes=tuple(
            of_class.mixes(dual) for of_class, dual in zip(states, class_duals, strict=True)
        ),
        levels=levels,
    )


def _price_lengths(resources: Resources, duals: Floats) -> Floats:
    """Price each length in each state (states, n); infinite if it cannot be there."""
    cost: Floats = np.einsum("vr,vrn->vn", duals, resources.share)
    cost[~resources.eligible] = np.inf
    return cost


def _choose_values(costs: Sequence[Floats], in_use: Sequence[npt.NDArray[np.bool_]]) -> Floats:
    """Value each length at its least price in states in use, or in any."""
    pairs = list(zip(costs, in_use, strict=True))
    used = np.min([cost[active].min(axis=0, initial=np.inf) for cost, active in pairs], axis=0)
    anywhere = np.min([cost.min(axis=0) for cost in costs], axis=0)
    values = np.where(np.isfinite(used), used, anywhere)
    return np.where(np.isfinite(values), values, 0.0)


def _ladder(most: int, *, every_v: bool) -> Ints:
    """Return the V up to ``most`` that have a state: each of them, or those of ``_LADDER``."""
    if every_v:
        return np.arange(1, most + 1)
    return np.array(sorted({min(v, most) for v in _LADDER}))


@dataclass(frozen=True)
class _Program:
    """The linear program's columns: parts of groups, then pipelines of each state, then the scale.

    A part is an eligible pair: ``part_state`` and ``part_group`` (parts,) give its two sides.
    """

    part_state: Ints
    part_group: Ints
    states: int
    resources: int

    @property
    def parts(self) -> int:
        return len(self.part_state)

    @property
    def pipelines(self) -> slice:
        """Return the columns of pipelines, one a state."""
        return slice(self.parts, self.parts + self.states)

    @property
    def columns(self) -> int:
        return self.parts + self.states + 1

    @property
    def resource_rows(self) -> int:
        return self.states * self.resources

    def resource_limits(self, share: Floats, weights: Floats) -> list[_Block]:
        """Demand Σ part·weight·share − pipelines ≤ 0, for each resource of each state."""
        resources = share[self.part_state, :, self.part_group] * weights[self.part_group, None]
        rows = np.arange(self.resource_rows)
        number = self.resources
        of_part = self.part_state[:, None] * number + np.arange(number)
        return [
            (resources.ravel(), of_part.ravel(), np.repeat(np.arange(self.parts), number)),
            (-np.ones(len(rows)), rows, self.parts + rows // number),
        ]

    def pipeline_limits(self, sizes: Floats, limit_of: Ints, available: Floats) -> list[_Block]:
        """Demand Σ pipelines·size − available·scale ≤ 0 for each limit; ``limit_of``: a state's."""
        first = self.resource_rows
        limits = np.arange(len(available))
        return [
            (sizes, first + limit_of, self.parts + np.arange(self.states)),
            (-available, first + limits, np.full(len(limits), self.columns - 1)),
        ]


SOLVER = ("scipy.optimize", "scipy.sparse")
"""What solving needs to import."""


def load_solver() -> None:
    """Import what solving needs: half a second, once, which belongs to no step's planning.

    Commands that plan nothing do not wait for it.
    """
    for module in SOLVER:
        import_module(module)


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
    """Solve for the least scale: it, pipelines per state, duals of resources (states, resources).

    ``share`` (states, resources, groups), ``eligible`` (states, groups), ``of_class`` (states,)
    and ``weights`` (groups,): sequences that a group stands for. Every group is placed whole.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    states, groups = eligible.shape
    part_state, part_group = np.nonzero(eligible)
    program = _Program(part_state, part_group, states, share.shape[1])
    if gpus is None:
        counts = np.array([pipeline_class.count for pipeline_class in classes], dtype=np.float64)
        pipeline_limits = program.pipeline_limits(np.ones(states), of_class, counts)
    else:
        sizes = np.array([pipeline_class.gpus for pipeline_class in classes], dtype=np.float64)[
            of_class
        ]
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
    result = linprog(
        objective,
        A_ub=upper,
        b_ub=np.zeros(rows),
        A_eq=placed,
        b_eq=np.ones(groups),
        method="highs-ds",
    )
    if result.status != 0:
        return None
    marginals = result.ineqlin.marginals[: program.resource_rows]
    duals = np.maximum(-marginals.reshape(states, program.resources), 0.0)
    return float(result.x[-1]), result.x[program.pipelines], duals


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


def bound_by_relaxation_ms(
    classes: Sequence[PipelineClass],
    batch: Batch,
    relaxation: Relaxation,
    low_ms: float,
    high_ms: float,
    gpus: int | None = None,
    guess_ms: float | None = None,
) -> float:
    """Find the largest time in [``low_ms``, ``high_ms``] that the relaxation's values refute.

    ``low_ms`` is returned when nothing above it is refuted: it must be a bound already. With
    ``gpus``, the bound is over all strategies of these classes on that many GPUs. ``guess_ms``:
    where the bound is expected; just below and above it are tried first.
    """
    needed = float(relaxation.values @ batch.multiplicity)
    extra = list_fixed_mixes(relaxation)
    if gpus is None:
        extra = extra[:1]
    held = [
        HeldValue(pipeline_class, batch, relaxation, k, extra)
        for k, pipeline_class in enumerate(classes)
    ]
    # Over all strategies one class that can hold too much refutes nothing: the one that last did
    # is tried first.
    order = list(range(len(classes)))

    def refutes(time_ms: float) -> bool:
        if gpus is None:
            prices = [value.most(time_ms) for value in held]
            offered = sum(k.count * price for k, price in zip(classes, prices, strict=True))
            if needed > offered * (1 + ROUNDING):
                return True
        else:
            prices = [float(pipeline_class.gpus) for pipeline_class in classes]
            offered = float(gpus)
        return _is_refuted(
            relaxation.values, batch.multiplicity, held, prices, offered, time_ms, order
        )

    if refutes(high_ms):
        return high_ms
    low, high = low_ms, high_ms
    tolerance = BISECTION_TOLERANCE if gpus is None else 10 * BISECTION_TOLERANCE
    near = [] if guess_ms is None else [guess_ms * (1 + 2 * tolerance * side) for side in (1, -1)]
    while high - low > tolerance * high:
        middle = near.pop() if near else (low + high) / 2
        if not low < middle < high:
            continue
        if refutes(middle):
            low = middle
        else:
            high = middle
    return low


def _is_refuted(
    values: Floats,
    counts: Ints,
    held: Sequence[HeldValue],
    prices: Sequence[float],
    offered: float,
    time_ms: float,
    order: list[int],
) -> bool:
    """Return whether values exceed what pipelines of some ``prices`` can hold.

    ``order``: of asking the classes; that which leaves nothing refuted comes first in it.
    """
    needed = float(values @ counts)
    least = np.full(len(values), np.inf)
    for place, k in enumerate(order):
        if prices[k] > 0:  # no value can be in a pipeline of none
            share = held[k].least_share(time_ms, prices[k] * needed / offered)
            np.minimum(least, prices[k] * share, out=least)
        if _surplus(values, least, counts, offered) <= needed * ROUNDING:
            order.insert(0, order.pop(place))
            return False
    return True


def _surplus(values: Floats, least: Floats, counts: Ints, offered: float) -> float:
    """Return by how much values of ``counts`` sequences can exceed what pipelines then hold.

    Of values that are cut (``cut_values``); 0 if nothing is gained at any weight.
    """
    cut, weight = cut_values(values, least, counts, offered)
    return float(cut @ counts) - weight * offered


def cut_values(values: Floats, least: Floats, counts: Ints, offered: float) -> tuple[Floats, float]:
    """Cut values to w·``least``, at the weight w at which they exceed w·``offered`` by most.

    A pipeline holds w times its price if no value is above w·``least``, the least that a
    length takes of any pipeline, priced. Values that no pipeline can hold are not cut.
    """
    takes = np.isfinite(least)
    with np.errstate(divide="ignore", invalid="ignore"):
        # The w from which a value is whole.
        cut_at = np.where(takes & (values > 0), values / least, 0.0)
    order = np.argsort(-cut_at, kind="stable")
    growth = np.cumsum((counts * np.where(takes, least, 0.0))[order])
    # Concave in w: the surplus grows with w as long as the values that are cut grow by more.
    last = int(np.searchsorted(growth, offered))
    weight = float(cut_at[order[last]]) if last < len(order) else 0.0
    return np.where(takes, np.minimum(values, weight * np.where(takes, least, 0.0)), values), weight


def certify(fleet: Fleet, batch: Batch, objective_ms: float) -> float:
    """Prove a lower bound (ms) on the step's time with this fleet, by priced relaxation."""
    low = single_bound_ms(fleet.classes, batch)
    time = objective_ms / (1 + CERTIFY_GAP)
    if low >= time:
        return min(low, objective_ms)
    for _ in range(2):
        relaxed = relax(fleet.classes, batch, time)
        if relaxed is None:
            return low  # not solved: that proves nothing
        low = bound_by_relaxation_ms(fleet.classes, batch, relaxed, low, objective_ms)
        if low >= objective_ms / (1 + 2 * CERTIFY_GAP):
            break
        time = low * (1 + CERTIFY_GAP)
    return low
