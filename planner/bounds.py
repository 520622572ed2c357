"""Proven lower bounds on a step's time, for one strategy or over all strategies of N GPUs.

The bound is Lagrangian. A pipeline that ends by τ runs some number V of micro-batches; given V,
form S limits three resources of it:

- work: Σ(a·l² + b·l) ≤ τ − c·V at pp = 1, and ≤ V·β with β = τ/(V + pp − 1) − c at pp > 1, because
  the largest micro-batch is at least the mean one; a sequence with more work than β is excluded;
- tokens: Σ padded lengths ≤ V·MaxLen;
- large items: a micro-batch holds at most one sequence above half of β or of MaxLen (the
  simplest of Martello and Toth's dual feasible functions; per pipeline for work at pp = 1).

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
from seqplan.planner.fleet import PipelineClass

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


def resources(
    item: PipelineClass, micro_batches: int, lengths: npt.NDArray[np.int64], time_ms: float
) -> Resources:
    """The resources of one class for V = 1 … ``micro_batches`` at time τ = ``time_ms``."""
    v = np.arange(1, micro_batches + 1, dtype=np.float64)
    work = item.work_ms(lengths)
    padded = item.padded(lengths)
    if item.pp == 1:
        budget = np.maximum(time_ms - item.c * v, 0.0)  # of a pipeline, shared by its micro-batches
        offered_work, large_work = budget, np.ones_like(v)
    else:
        budget = np.maximum(time_ms / (v + item.pp - 1) - item.c, 0.0)  # of each micro-batch
        offered_work, large_work = v * budget, v.copy()
    fits = work[None, :] <= budget[:, None] * (1 + _SAFETY)
    eligible = fits & (padded <= item.capacity)[None, :]
    offered = np.stack([offered_work, v * item.capacity, large_work, v], axis=1)
    taken = np.empty((micro_batches, RESOURCES, len(lengths)))
    taken[:, 0] = work
    taken[:, 1] = padded
    taken[:, 2] = work[None, :] > budget[:, None] * (0.5 + _SAFETY)
    taken[:, 3] = 2 * padded > item.capacity
    offered[budget <= 0] = 0.0
    return Resources(offered, taken, eligible)


def refutes(
    classes: Sequence[PipelineClass],
    batch: Batch,
    prices: Prices,
    time_ms: float,
    gpus: int | None = None,
) -> bool:
    """Whether these prices prove that no placement of the batch ends by ``time_ms``.

    With ``gpus``, the number of pipelines of each class is free and only Σ count·gpus ≤ ``gpus``
    holds: the proof is then over all strategies made of these classes.
    """
    lengths = batch.distinct
    cheapest = np.full(len(lengths), np.inf)
    offers = []
    for item, price in zip(classes, prices.values, strict=True):
        of_class = resources(item, len(price), lengths, time_ms)
        cost = np.einsum("vr,vrn->vn", price, of_class.taken)
        cost[~of_class.eligible] = np.inf
        np.minimum(cheapest, cost.min(axis=0), out=cheapest)
        offers.append(float(max(0.0, np.einsum("vr,vr->v", price, of_class.offered).max())))
    if np.isinf(cheapest).any():
        return True  # a sequence that ends by this time nowhere
    needed = float(cheapest @ batch.multiplicity)
    if gpus is None:
        offered = sum(item.count * offer for item, offer in zip(classes, offers, strict=True))
    else:
        offered = gpus * max(o / item.gpus for item, o in zip(classes, offers, strict=True))
    return needed > offered * (1 + _SAFETY) + 1e-12


def price_bound_ms(
    classes: Sequence[PipelineClass],
    batch: Batch,
    prices: Prices,
    low_ms: float,
    high_ms: float,
    gpus: int | None = None,
) -> float:
    """The largest time in [``low_ms``, ``high_ms``] that the prices refute, by bisection.

    ``low_ms`` is returned when nothing above it is refuted: it must be a bound already.
    """
    if refutes(classes, batch, prices, high_ms, gpus):
        return high_ms
    low, high = low_ms, high_ms
    while high - low > BISECTION_TOLERANCE * high:
        middle = (low + high) / 2
        if refutes(classes, batch, prices, middle, gpus):
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
    tops = [len(item.micro_batch_range(time_ms)) for item in classes]
    parts = [
        resources(item, top, lengths, time_ms) for item, top in zip(classes, tops, strict=True)
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
    norm = np.maximum(offered, 1e-12)
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
    used = np.bincount(of_class, weights=solved.x[shares : shares + kv], minlength=len(classes))
    cuts = np.cumsum(tops)[:-1]
    return Relaxation(float(solved.x[-1]), used, Prices(tuple(np.split(prices, cuts))))


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
