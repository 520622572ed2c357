"""Groups that regroup within a step: blocks of ranks filled to a target time, and split.

At pp = 1 pipelines of one layout hold the same shards whatever their Ulysses and ring degrees, so
that a block of ranks which ran one long sequence together may go on as several smaller blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import area_only_bound_ms, gpu_ms
from seqplan.planner.placement.dominance import drop_dominated
from seqplan.planner.placement.fill_tables import FillTables
from seqplan.planner.placement.fleet import Bin, Floats, Models, PipelineClass
from seqplan.planner.placement.greedy import SequencePool
from seqplan.planner.sync.times import Layout, SyncTimes, layouts_of
from seqplan.plans.scheme import Scheme

TRIALS = 20
"""Random prices that are tried at most, in addition to the classes'."""

TRIED_SEQUENCES = 6_000
"""Trials times sequences at most, so that large steps are not planned for long."""

PRICE_SPREAD = 0.08
"""Standard deviation of the logarithm of a random multiplier of prices."""

TOLERANCE = 1e-3
"""Relative width at which a bisection of the target time ends, and least gain of a trial."""

_ROUND = 1.0 + 1e-12


@dataclass(frozen=True)
class Run:
    """Micro-batches of one class in sequence on ranks ``first`` … + gpus − 1."""

    first: int
    class_index: int
    micro_batches: tuple[Bin, ...]
    start_ms: float


@dataclass(frozen=True)
class Regrouping:
    """A placement whose groups regroup; ``runs`` in order of their start, parents before children.

    ``objective_ms``: the end of the last.
    """

    runs: tuple[Run, ...]
    objective_ms: float


@dataclass(frozen=True)
class RegroupLayout:
    """A layout whose groups can regroup: its classes, the scheme of each, and its exposed sync.

    A class for each scheme and recomputation mode; ``sync_ms``: what nothing hides.
    """

    layout: Layout
    schemes: tuple[Scheme, ...]
    classes: tuple[PipelineClass, ...]
    sync_ms: float

    @property
    def max_sequence(self) -> int:
        """Return the longest sequence (tokens) that some scheme holds."""
        return max(pipeline_class.capacity for pipeline_class in self.classes)

    def bound_ms(self, batch: Batch, gpus: int) -> float:
        """Bound step and sync of every plan of the layout; see ``area_only_bound_ms``."""
        return area_only_bound_ms(self.classes, batch, gpus) + self.sync_ms


def make_regroup_layouts(models: Models, sync: SyncTimes) -> list[RegroupLayout]:
    """List the layouts of ``models`` whose groups can regroup: those without stages of which each
    GPU count divides the next; schemes that others replace at no loss are left out."""
    layouts = []
    for layout in sorted(layouts_of(models)):
        members = drop_dominated(
            {s: m for s, m in models.items() if (s.tp, s.pp) == layout and m.max_sequence > 0}
        )
        pairs = [
            (scheme, of_mode)
            for scheme, model in members.items()
            for of_mode in PipelineClass.from_model(model, 1).by_mode
        ]
        schemes, classes = zip(*pairs, strict=True) if pairs else ((), ())
        if layout[1] == 1 and find_nested_sizes(classes) is not None:
            sync_ms = sync.compute_exposed_ms([layout], regrouping=True)
            layouts.append(RegroupLayout(layout, schemes, classes, sync_ms))
    return layouts


def find_nested_sizes(classes: Sequence[PipelineClass]) -> tuple[int, ...] | None:
    """List the GPU counts of the classes, ascending; None unless each divides the next."""
    sizes = tuple(sorted({pipeline_class.gpus for pipeline_class in classes}))
    if not sizes or any(larger % smaller for smaller, larger in pairwise(sizes)):
        return None
    return sizes


def find_regrouping(
    classes: Sequence[PipelineClass], batch: Batch, gpus: int, below_ms: float, seed: int = 0
) -> Regrouping | None:
    """Find groups that regroup and end before ``below_ms``; None if none were found.

    One pass of the filler per target time, bisected down from ``below_ms``, then again at random
    multipliers of the prices, unless the first pass fails: on the shipped profiles no multiplier
    has succeeded then. The number of passes is bounded by counts and the random numbers are
    ``seed``'s, so that the same batch has the same placement. ``classes`` must have nested sizes.
    """
    bound = area_only_bound_ms(classes, batch, gpus)
    if bound >= below_ms:
        return None
    filler = RegroupFiller(classes, batch, gpus)
    random = Random(seed)
    trials = min(TRIALS, TRIED_SEQUENCES // len(batch.lengths))
    best: Regrouping | None = None
    reached = below_ms
    for trial in range(1 + trials):
        multipliers = np.ones(len(classes))
        if trial:
            # Rounded: the last digit of a logarithm is not the same everywhere.
            draws = [round(random.lognormvariate(0.0, PRICE_SPREAD), 6) for _ in classes]
            multipliers = np.array(draws)
        # At ``reached`` a sequence may be on a class on which it takes all of it.
        lower = reached * (1 - TOLERANCE)
        if lower < bound:
            break
        targets = (lower,) if trial else (reached, lower)
        passes = (filler.fill(target, multipliers) for target in targets)
        placed = next((p for p in passes if p is not None and p.objective_ms < reached), None)
        if placed is None:
            if not trial:
                return None
            continue
        best = _bisect_target(filler, multipliers, placed, bound)
        reached = best.objective_ms
    return best


def _bisect_target(
    filler: RegroupFiller, multipliers: Floats, placed: Regrouping, bound_ms: float
) -> Regrouping:
    """Lower the target time between the bound and the time reached with these prices."""
    low = bound_ms
    while placed.objective_ms - low > TOLERANCE * placed.objective_ms:
        middle = (low + placed.objective_ms) / 2
        better = filler.fill(middle, multipliers)
        if better is None or better.objective_ms >= placed.objective_ms:
            low = middle
        else:
            placed = better
    return placed


class RegroupFiller:
    """Places a batch by a target time on blocks of ranks, split when that pays."""

    def __init__(self, classes: Sequence[PipelineClass], batch: Batch, gpus: int) -> None:
        sizes = find_nested_sizes(classes)
        if sizes is None:
            raise ValueError(
                "groups regroup only where their GPU counts divide one another"
                ". Use GPU counts that do"
            )
        self.classes, self.gpus = list(classes), gpus
        self.below = dict(zip(sizes[1:], sizes, strict=False))
        self.sizes = sizes
        self.tables = FillTables.from_batch(batch)
        self.lengths = self.tables.lengths
        self.costs = [self.tables.find_costs(k).by_mode[0] for k in self.classes]
        self.counts = batch.multiplicity.tolist()
        self.n = len(batch.lengths)
        alone = np.array([c.work_ms(batch.distinct) + c.c for c in self.classes])
        self.gpu_ms = gpu_ms(self.classes, batch.distinct)
        self.alone_ms: Floats = np.where(np.isfinite(self.gpu_ms), alone, np.inf)
        self.alone_rows: list[list[float]] = self.alone_ms.tolist()

    def fill(self, target_ms: float, multipliers: Floats) -> Regrouping | None:
        """Place all sequences by ``target_ms``, each on its cheapest class if that goes.

        ``multipliers``: one per class, of its price in GPU-time. None if a sequence is left.
        """
        prices = np.where(self.alone_ms <= target_ms, self.gpu_ms * multipliers[:, None], np.inf)
        if np.isinf(prices.min(axis=0)).any():
            return None
        cheapest = prices.argmin(axis=0)
        cuts = [*(np.flatnonzero(np.diff(cheapest)) + 1).tolist(), len(self.lengths)]
        blocks = _Blocks(self, target_ms)
        for cut in cuts:
            above = self.lengths[cut] if cut < len(self.lengths) else 0
            if not self._place(blocks, int(cheapest[cut - 1]), above, prices):
                return None
        return blocks.placement()

    def _place(self, blocks: _Blocks, k: int, above: int, prices: Floats) -> bool:
        """Place every sequence longer than ``above``, on class ``k`` if that goes."""
        pool = blocks.pool
        while (i := pool.longest(self.lengths[0])) is not None and self.lengths[i] > above:
            if blocks.give(k, self.alone_rows[k][i], above):
                continue
            # No GPUs left: any room in any micro-batch, then any class that can still end in time.
            left = pool.left
            blocks.top_up_all()
            if pool.left < left:
                continue
            order = np.argsort(prices[:, i], kind="stable").tolist()
            if not any(
                blocks.give(other, self.alone_rows[other][i], self.lengths[i] - 1)
                for other in order
                if prices[other, i] < np.inf
            ):
                return False
        return True


class _Micro:
    """A micro-batch that may still be topped up: its class, its sequences, tokens left."""

    __slots__ = ("bin", "cost_ms", "k", "tokens")

    def __init__(self, k: int, content: Bin, tokens: int, cost_ms: float) -> None:
        self.k, self.bin, self.tokens, self.cost_ms = k, content, tokens, cost_ms


class _Block:
    """Ranks ``first`` … + gpus − 1 from ``begin_ms`` on; free at ``ready_ms``."""

    __slots__ = ("begin_ms", "first", "gpus", "micro_batches", "ready_ms")

    def __init__(self, first: int, gpus: int, begin_ms: float) -> None:
        self.first, self.gpus, self.begin_ms, self.ready_ms = first, gpus, begin_ms, begin_ms
        self.micro_batches: list[_Micro] = []


class _Blocks:
    """The state of one pass: blocks of ranks in use, and the sequences that are left."""

    def __init__(self, filler: RegroupFiller, target_ms: float) -> None:
        self.filler, self.target_ms = filler, target_ms
        self.pool = SequencePool(filler.tables, filler.counts.copy())
        self.blocks: list[_Block] = []
        """All that ever ran, parents before the parts they were split into."""
        self.leaves: list[_Block] = []
        self.used = 0

    def give(self, k: int, alone_ms: float, above: int) -> bool:
        """Run sequences longer than ``above`` as class ``k`` on one more block.

        The longest alone takes ``alone_ms``. A block in use with the least time left is taken
        first, then ranks not yet in use. False if there is none or nothing fits.
        """
        gpus = self.filler.classes[k].gpus
        tightest: _Block | None = None
        latest = self.target_ms * _ROUND - alone_ms
        for block in self.leaves:
            if (
                block.gpus >= gpus
                and block.ready_ms <= latest
                and (tightest is None or block.ready_ms > tightest.ready_ms)
            ):
                tightest = block
        if tightest is None:
            tightest = self._take_unused(gpus)
        if tightest is None:
            return False
        while tightest.gpus > gpus:
            tightest = self._split(tightest)
        return self._add(tightest, k, above)

    def top_up_all(self) -> None:
        """Add whatever fits to the micro-batches of every block that has not been split."""
        for block in self.leaves:
            for micro in block.micro_batches:
                room = self.target_ms - block.ready_ms
                if room <= 0 or not self.pool.left:
                    break
                costs = self.filler.costs[micro.k]
                left, micro.tokens = self.pool.top_up(costs, micro.bin, room, micro.tokens, 0)
                micro.cost_ms += room - left
                block.ready_ms += room - left
            if block.micro_batches and self.pool.left:
                self._add(block, block.micro_batches[-1].k, 0)

    def placement(self) -> Regrouping:
        """List what runs where, in order of start."""
        runs = []
        for block in self.blocks:
            start = block.begin_ms
            since, bins = start, list[Bin]()
            for j, micro in enumerate(block.micro_batches):
                bins.append(micro.bin)
                start += micro.cost_ms
                after = block.micro_batches[j + 1 : j + 2]
                if not after or after[0].k != micro.k:
                    runs.append(Run(block.first, micro.k, tuple(bins), since))
                    since, bins = start, []
        runs.sort(key=lambda run: run.start_ms)  # stable: a parent stays before its parts
        return Regrouping(tuple(runs), max(block.ready_ms for block in self.leaves))

    def _add(self, block: _Block, k: int, above: int) -> bool:
        """Run micro-batches of class ``k`` on a block of its size until nothing more fits."""
        costs = self.filler.costs[k]
        before = self.pool.left
        while self.pool.left:
            room = self.target_ms - block.ready_ms - costs.c
            room += self.target_ms * (_ROUND - 1)
            if room <= 0:
                break
            content: Bin = []
            left, tokens = self.pool.top_up(costs, content, room, costs.capacity, above)
            if not content:
                break
            cost = room - left + costs.c
            block.micro_batches.append(_Micro(k, content, tokens, cost))
            block.ready_ms += cost
        return self.pool.left < before

    def _take_unused(self, gpus: int) -> _Block | None:
        """Take unused ranks whose first is a multiple of ``gpus``; those passed over wait."""
        first = -(-self.used // gpus) * gpus
        if first + gpus > self.filler.gpus:
            return None
        while self.used < first:
            size = max(s for s in self.filler.sizes if not self.used % s and self.used + s <= first)
            self._append(_Block(self.used, size, 0.0))
            self.used += size
        self.used += gpus
        return self._append(_Block(first, gpus, 0.0))

    def _split(self, block: _Block) -> _Block:
        """Split a block into parts of the next smaller size; the first of them."""
        size = self.filler.below[block.gpus]
        self.leaves.remove(block)
        parts = [
            self._append(_Block(first, size, block.ready_ms))
            for first in range(block.first, block.first + block.gpus, size)
        ]
        return parts[0]

    def _append(self, block: _Block) -> _Block:
        self.blocks.append(block)
        self.leaves.append(block)
        return block
