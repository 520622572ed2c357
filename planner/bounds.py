"""Proven lower bounds on a step's time, for one strategy or over all strategies of N GPUs.

The bound is Lagrangian. A pipeline that ends by τ runs some number V of micro-batches; given V,
form S limits three resources of it:

- work: Σ(a·l² + b·l) ≤ τ − c·V at pp = 1, and ≤ V·β with β = τ/(V + pp − 1) − c at pp > 1, because
  the largest micro-batch is at least the mean one; a sequence with more work than β is excluded;
- tokens: Σ padded lengths ≤ V·MaxLen;
- large items: a micro-batch holds at most one sequence above half of β or of MaxLen (the
  simplest of Martello and Toth's dual feasible functions; per pipeline for work at pp = 1).

The largest V that is told apart stands for itself and every larger one: it offers the most work
and tokens that any of them can use, and its large items are not limited.

For prices y ≥ 0 on these resources, whatever they are, every placement satisfies
``Σ_sequences min_(scheme,V) price(sequence) ≤ Σ_pipelines max_V price(resources)``; if the left
side is larger at τ, no placement ends by τ. A small linear program over groups of similar
sequences finds good prices; the bound itself is evaluated on the sequences themselves, so it
is valid however rough the program was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array

from seqplan.planner.batch import Batch
from seqplan.planner.fleet import MOST, PipelineClass

Floats = npt.NDArray[np.float64]

RESOURCES = 4
"""Work, tokens, micro-batches with a large work, micro-batches with a large length."""

BISECTION_TOLERANCE = 1e-4
"""Relative width of the bisection for the largest refuted time."""

_SAFETY = 1e-9
"""Relative margin against rounding: a refutation must clear it."""


@dataclass(frozen=True)
class Prices:
    """Prices of a pipeline's resources: ``values[k][v − 1]`` has shape (RESOURCES,), V = v."""

    values: tuple[Floats, ...]


@dataclass(frozen=True)
class Resources:
    """What the pipelines of one class offer and what sequences take of it, for every V at time τ.

    ``offered`` (V, RESOURCES); ``taken`` (V, RESOURCES, n); ``eligible`` (V, n). A V that is too
    large to end by τ has no eligible sequence and offers nothing.
    """

    offered: Floats
    taken: Floats
    eligible: npt.NDArray[np.bool_]


def single_bound_ms(classes: Sequence[PipelineClass], batch: Batch) -> float:
    """The slowest sequence on the scheme that runs it fastest alone; inf if none can hold it.

    Both sides of pp·(a·l² + b·l + c) rise with l, so only the longest sequence matters.
    """
    longest = batch.longest
    times = [
        item.pp * (longest * (item.a * longest + item.b) + item.c)
        for item in classes
        if longest <= item.capacity
    ]
    return min(times, default=float("inf"))


def offered_resources(
    item: PipelineClass, micro_batches: npt.NDArray[np.int64], time_ms: float
) -> tuple[Floats, Floats]:
    """What a pipeline offers by τ = ``time_ms`` with each number of ``micro_batches`` (V,).

    Returns the largest work of a sequence (V,), and the resources (V, RESOURCES); both 0 for a V
    that cannot end by τ. The last V stands for all that are at least as large.
    """
    v = micro_batches.astype(np.float64)
    if item.pp == 1:
        budget = np.maximum(time_ms - item.c * v, 0.0)  # of a pipeline, shared by its micro-batches
        work, large = budget.copy(), np.ones_like(v)
    else:
        budget = np.maximum(time_ms / (v + item.pp - 1) - item.c, 0.0)  # of each micro-batch
        work, large = v * budget, v.copy()
    offered = np.stack([work, v * item.capacity, large, v], axis=1)
    if v[-1] >= MOST:  # the limits of ``most_micro_batches`` may lie beyond: assume nothing
        offered[-1, 0] = time_ms
        offered[-1, 1] = np.inf if item.b == 0 else time_ms / item.b
    offered[budget <= 0] = 0.0
    return budget, offered


def resources(
    item: PipelineClass,
    micro_batches: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    time_ms: float,
) -> Resources:
    """The resources of one class for each number of ``micro_batches`` at time τ = ``time_ms``."""
    budget, offered = offered_resources(item, micro_batches, time_ms)
    work = item.work_ms(lengths)
    padded = item.padded(lengths)
    fits = work[None, :] <= budget[:, None] * (1 + _SAFETY)
    eligible = fits & (padded <= item.capacity)[None, :]
    taken = np.empty((len(micro_batches), RESOURCES, len(lengths)))
    taken[:, 0] = work
    taken[:, 1] = padded if np.isfinite(offered[-1, 1]) else 0.0
    taken[:, 2] = work[None, :] > budget[:, None] * (0.5 + _SAFETY)
    taken[:, 3] = 2 * padded > item.capacity
    taken[-1, 2:] = 0.0
    return Resources(offered, taken, eligible)


class PriceBound:
    """What given prices prove about a batch on given classes.

    With ``gpus``, the number of pipelines of each class is free and only Σ count·gpus ≤ ``gpus``
    holds: the bound is then over all strategies made of these classes.
    """

    def __init__(
        self,
        classes: Sequence[PipelineClass],
        batch: Batch,
        prices: Prices,
        gpus: int | None = None,
    ) -> None:
        self._classes = classes
        self._prices = []
        self._counts = batch.multiplicity.astype(np.float64)
        self._gpus = gpus
        lengths = batch.distinct
        self._negated_work = [-item.work_ms(lengths) for item in classes]  # ascending
        self._too_long = []
        self._base = []
        for item, price, negated in zip(classes, prices.values, self._negated_work, strict=True):
            price = price.copy()
            price[-1, 2:] = 0.0
            if not item.b:
                price[:, 1] = 0.0
            self._prices.append(price)
            padded = item.padded(lengths)
            self._too_long.append(int(np.count_nonzero(padded > item.capacity)))
            taken = np.stack([-negated, padded, 2 * padded > item.capacity])
            self._base.append(price[:, [0, 1, 3]] @ taken)

    def refutes(self, time_ms: float) -> bool:
        """Whether no placement of the batch ends by ``time_ms``, as these prices prove."""
        cheapest = np.full(len(self._counts), np.inf)
        offers = []
        for k, (item, price) in enumerate(zip(self._classes, self._prices, strict=True)):
            budget, offered = offered_resources(item, np.arange(1, len(price) + 1), time_ms)
            # Works descend, so what is too large and what is above half are leading runs.
            negated = self._negated_work[k]
            excluded = np.searchsorted(negated, -budget * (1 + _SAFETY)).tolist()
            large = np.searchsorted(negated, -budget * (0.5 + _SAFETY)).tolist()
            for v, cost in enumerate(self._base[k]):
                start = max(excluded[v], self._too_long[k])
                middle = max(large[v], start)
                if price[v, 2] and middle > start:
                    part = cheapest[start:middle]
                    np.minimum(part, cost[start:middle] + price[v, 2], out=part)
                    start = middle
                part = cheapest[start:]
                np.minimum(part, cost[start:], out=part)
            offered[~np.isfinite(offered)] = 0.0  # unlimited tokens have no price
            offers.append(max(0.0, float((price * offered).sum(axis=1).max())))
        needed = float(cheapest @ self._counts)  # inf: a sequence that ends by this time nowhere
        if self._gpus is None:
            pairs = zip(self._classes, offers, strict=True)
            available = sum(item.count * offer for item, offer in pairs)
        else:
            per_gpu = (o / item.gpus for item, o in zip(self._classes, offers, strict=True))
            available = self._gpus * max(per_gpu)
        return needed > available * (1 + _SAFETY) + 1e-12

    def bound_ms(
        self, low_ms: float, high_ms: float, tolerance: float = BISECTION_TOLERANCE
    ) -> float:
        """The largest time in [``low_ms``, ``high_ms``] found refuted, by bisection.

        ``low_ms`` is returned when nothing above it is refuted: it must be a bound already.
        """
        if self.refutes(high_ms):
            return high_ms
        low, high = low_ms, high_ms
        while high - low > tolerance * high:
            middle = (low + high) / 2
            if self.refutes(middle):
                low = middle
            else:
                high = middle
        return low


@dataclass(frozen=True)
class Relaxation:
    """The grouped linear program at one time: scaled pipeline counts, prices, and the scale.

    ``scale``: the least factor by which the offered pipelines (or GPUs) must be multiplied for the
    relaxed batch to fit; ``pipelines``: per class the pipelines used, Σ over V.
    """

    scale: float
    pipelines: Floats
    prices: Prices


def relax(
    classes: Sequence[PipelineClass],
    batch: Batch,
    time_ms: float,
    gpus: int | None = None,
    groups: int = 24,
    singles: int = 8,
) -> Relaxation | None:
    """Solve the grouped linear program at ``time_ms``; None when a sequence fits nowhere.

    Variables: share of each group on each (class, V), pipelines of each (class, V), and the scale
    that is minimised. ``singles`` longest distinct lengths stand alone; the rest form ``groups``
    of about equal tokens.
    """
    lengths, weights = _group(batch, groups, singles)
    tops = [item.most_micro_batches(time_ms) for item in classes]
    if gpus is None:
        ladders = [np.arange(1, top + 1) for top in tops]
    else:
        ladders = [_ladder(top) for top in tops]
    tops = [len(ladder) for ladder in ladders]
    parts = [
        resources(item, ladder, lengths, time_ms)
        for item, ladder in zip(classes, ladders, strict=True)
    ]
    eligible = np.concatenate([part.eligible for part in parts])  # (KV, n)
    if not eligible.any(axis=0).all():
        return None
    taken = np.concatenate([part.taken for part in parts])  # (KV, R, n)
    offered = np.concatenate([part.offered for part in parts])  # (KV, R)
    of_class = np.repeat(np.arange(len(classes)), tops)
    kv, n = eligible.shape

    where_v, where_n = np.nonzero(eligible)
    shares = len(where_v)  # share variables, then kv pipeline counts, then the scale
    columns = shares + kv + 1
    norm = np.where(np.isfinite(offered), np.maximum(offered, 1e-12), 1.0)
    # resource rows: Σ_n share·weight·taken/offered − count ≤ 0
    values = (taken[where_v, :, where_n] * weights[where_n, None]) / norm[where_v]
    rows = where_v[:, None] * RESOURCES + np.arange(RESOURCES)
    cols = np.broadcast_to(np.arange(shares)[:, None], rows.shape)
    count_rows = np.arange(kv * RESOURCES)
    count_cols = shares + np.repeat(np.arange(kv), RESOURCES)
    limits = len(classes) if gpus is None else 1
    limit_rows = kv * RESOURCES + (of_class if gpus is None else np.zeros(kv, dtype=np.int64))
    sizes = np.array([item.gpus for item in classes], dtype=np.float64)
    counts = np.array([item.count for item in classes], dtype=np.float64)
    usage = np.ones(kv) if gpus is None else sizes[of_class]
    available = counts if gpus is None else np.array([float(gpus)])
    upper = coo_array(
        (
            np.concatenate([values.ravel(), -np.ones(kv * RESOURCES), usage, -available]),
            (
                np.concatenate(
                    [rows.ravel(), count_rows, limit_rows, kv * RESOURCES + np.arange(limits)]
                ),
                np.concatenate(
                    [
                        cols.ravel(),
                        count_cols,
                        shares + np.arange(kv),
                        np.full(limits, shares + kv),
                    ]
                ),
            ),
        ),
        shape=(kv * RESOURCES + limits, columns),
    ).tocsr()
    equal = coo_array((np.ones(shares), (where_n, np.arange(shares))), shape=(n, columns)).tocsr()
    objective = np.zeros(columns)
    objective[-1] = 1.0
    solved = linprog(
        objective,
        A_ub=upper,
        b_ub=np.zeros(upper.shape[0]),
        A_eq=equal,
        b_eq=np.ones(n),
        method="highs-ds",
    )
    if solved.status != 0:
        return None
    duals = np.maximum(-solved.ineqlin.marginals[: kv * RESOURCES].reshape(kv, RESOURCES), 0.0)
    prices = duals / norm
    prices[offered <= 0] = 0.0
    used = np.bincount(
        of_class, weights=solved.x[shares : shares + kv], minlength=len(classes)
    ).astype(np.float64)
    split = np.split(prices, np.cumsum(tops)[:-1])
    whole = tuple(part[_fill_ladder(ladder)] for part, ladder in zip(split, ladders, strict=True))
    return Relaxation(float(solved.x[-1]), used, Prices(whole))


def _ladder(top: int) -> npt.NDArray[np.int64]:
    """The numbers of micro-batches that the program tells apart: all up to 4, then wider apart."""
    steps = [1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 48, 64]
    return np.array(sorted({min(step, top) for step in steps}), dtype=np.int64)


def _fill_ladder(ladder: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For every V from 1 to the ladder's top, the index of the largest step ≤ V."""
    return np.searchsorted(ladder, np.arange(1, ladder[-1] + 1), side="right") - 1


def _group(batch: Batch, groups: int, singles: int) -> tuple[npt.NDArray[np.int64], Floats]:
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
