"""Ranks that are slower than others, or lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import isfinite

import numpy as np

from seqplan.planner.argument_checks import check_list
from seqplan.planner.placement.fleet import Fleet, Floats, Models, PipelineClass
from seqplan.plans.plan import Plan
from seqplan.plans.scheme import Scheme, Strategy

MOST = 1e3
"""The largest factor; a rank that is slower still counts as lost."""


_Placed = tuple[Scheme, float, tuple[int, ...]]
"""A pipeline's scheme, factor and ranks."""

_Key = Callable[[int, int], float]
"""What blocks are chosen by: of the first rank and the size."""


@dataclass(frozen=True)
class Slowdown:
    """How many times as long each rank computes: 1 or more, None for a lost rank."""

    factors: tuple[float | None, ...]

    @classmethod
    def from_value(cls, slowdown: Sequence[float | None] | None, ranks: int) -> Slowdown:
        """Check the factors of ``ranks`` ranks; without any, all are 1.

        ``ValueError`` for another number of them, a factor below 1 or none, and if every rank is
        lost; ``TypeError`` for other values.
        """
        if slowdown is None:
            return cls((1.0,) * ranks)
        check_list("slowdown", slowdown, "factors, one for each rank")
        factors = list(slowdown)
        if len(factors) != ranks:
            raise ValueError(
                f"slowdown has {len(factors)} factors for {ranks} ranks. Give one for each rank"
            )
        for rank, factor in enumerate(factors):
            if factor is None:
                continue
            if isinstance(factor, bool) or not isinstance(factor, int | float | np.number):
                raise TypeError(
                    f"slowdown of rank {rank}: {factor!r}. Give a number from 1 on, or None if the "
                    "rank is lost"
                )
            if not isfinite(factor) or not 1 <= factor <= MOST:
                raise ValueError(
                    f"slowdown of rank {rank}: {factor}. Give 1 for the speed that the cost "
                    f"describes, up to {MOST:g} for slower ones, or mark the rank as lost"
                )
        if all(factor is None for factor in factors):
            raise ValueError(f"slowdown: all {ranks} ranks are lost. Give one that computes")
        return cls(tuple(None if factor is None else float(factor) for factor in factors))

    @property
    def slow(self) -> tuple[tuple[int, float | None], ...]:
        """List the ranks that are slower than the profile, or lost, each with its factor."""
        return tuple((rank, factor) for rank, factor in enumerate(self.factors) if factor != 1)

    @property
    def order(self) -> list[int]:
        """List the ranks that compute, the fastest first."""
        alive = [(factor, rank) for rank, factor in enumerate(self.factors) if factor is not None]
        return [rank for _, rank in sorted(alive)]

    @property
    def lost(self) -> tuple[int, ...]:
        """List the ranks that are lost."""
        return tuple(rank for rank, factor in enumerate(self.factors) if factor is None)

    @property
    def in_order(self) -> Floats:
        """Return the factors of the ranks that compute, the fastest first."""
        return np.array(sorted(factor for factor in self.factors if factor is not None))

    @property
    def speed(self) -> float:
        """Return the speed of all ranks together, in ranks like the fastest."""
        factors = self.in_order
        return float((factors[0] / factors).sum())

    @property
    def differ(self) -> bool:
        """Return whether some ranks that compute are slower than others."""
        return bool(self.in_order[-1] > self.in_order[0])

    def at_ranks(self, in_order: Sequence[list[list[int]]]) -> list[list[list[int]]]:
        """Return the micro-batches of all ranks, given those that compute, the fastest first."""
        parts: list[list[list[int]]] = [[] for _ in self.factors]
        for rank, of_rank in zip(self.order, in_order, strict=True):
            parts[rank] = of_rank
        return parts

    def make_classes(self, micro_batch: PipelineClass) -> list[PipelineClass]:
        """Make a class of the ranks of each factor, the fastest first."""
        numbers = Counter(self.in_order.tolist())
        return [slow_down(micro_batch, factor, count) for factor, count in sorted(numbers.items())]

    def place(self, strategy: Strategy) -> list[tuple[tuple[int, ...], float]] | None:
        """Place the pipelines of a strategy: ranks and factor of each, in the strategy's order.

        A pipeline is as slow as its slowest rank. The largest take the fastest blocks of ranks that
        are aligned to their size, so that slow ranks are left for the smallest; those of a scheme
        come fastest first. Sizes that are no powers of two take other blocks, the fastest or the
        first, if the slowest pipelines are faster then, or aligned ones do not suffice; then, if no
        rank is lost, all take the ranks in order.
        None if blocks without a lost rank do not suffice.
        """
        placed = self._place_aligned(strategy)
        if not all(_is_aligned(scheme.gpus) for scheme, _ in strategy.counts):
            ways = [
                placed,
                *(self._place_aligned(strategy, key) for key in (self._time_block, _get_first)),
            ]
            placed = min(filter(None, ways), key=_list_slowest, default=None)
        if placed is None and not self.lost:
            placed, first = [], 0
            for scheme in strategy:
                block = tuple(range(first, first + scheme.gpus))
                placed.append((scheme, self._time_block(first, scheme.gpus), block))
                first += scheme.gpus
        if placed is None:
            return None
        in_order = sorted(placed)
        return [
            (block, factor)
            for scheme, _ in strategy.counts
            for of, factor, block in in_order
            if of == scheme
        ]

    def keep_fitting(self, models: Models) -> Models:
        """Return the models of schemes that a block of ranks without lost ones holds."""
        return {
            scheme: model
            for scheme, model in models.items()
            if self.place(Strategy.from_counts({scheme: 1}))
        }

    def fit(self, strategy: Strategy, schemes: Collection[Scheme]) -> Strategy:
        """Return the strategy, if it can be placed; else with groups that aligned blocks hold.

        Pipelines without a block, the largest first, become smaller ones of their layout, of
        ``schemes``, or are left out.
        """
        if self.place(strategy) is not None:
            return strategy
        free = [factor is not None for factor in self.factors]
        waiting, counts = list(strategy), Counter[Scheme]()
        while waiting:
            scheme = max(waiting, key=lambda waits: waits.gpus)
            waiting.remove(scheme)
            size = scheme.gpus
            block = _find_block(free, size, size if _is_aligned(size) else 1)
            if block is not None:
                counts[scheme] += 1
                free[block] = [False] * size
                continue
            of_layout = (s for s in schemes if (s.tp, s.pp) == (scheme.tp, scheme.pp))
            smaller = max((s for s in of_layout if s.gpus < size), key=_by_size, default=None)
            if smaller is not None:
                waiting += [smaller] * (size // smaller.gpus)
        return Strategy.from_counts(counts)

    def leave_out_slow(self) -> Slowdown:
        """Return the speeds if all but the fastest ranks count as lost."""
        fastest = self.in_order[0]
        return Slowdown(tuple(None if factor != fastest else factor for factor in self.factors))

    def _place_aligned(self, strategy: Strategy, key: _Key | None = None) -> list[_Placed] | None:
        """Give each pipeline, the largest first, its fastest block; None if one finds none.

        ``key``: sizes that are no powers of two take the free blocks of least key. Aligned
        blocks of a size do not overlap, so that its pipelines take the fastest of them in order.
        """
        free = [factor is not None for factor in self.factors]
        placed: list[_Placed] = []
        largest_first = sorted(strategy, key=lambda scheme: -scheme.gpus)
        for size, of_size in groupby(largest_first, key=lambda scheme: scheme.gpus):
            schemes = list(of_size)
            if key is not None and not _is_aligned(size):
                firsts = _find_least(free, size, len(schemes), key)
            else:
                blocks = range(0, len(free) - size + 1, size)
                firsts = [first for first in blocks if all(free[first : first + size])]
                firsts.sort(key=lambda first: self._time_block(first, size))
            if len(firsts) < len(schemes):
                return None
            for scheme, first in zip(schemes, firsts, strict=False):
                factor = self._time_block(first, size)
                placed.append((scheme, factor, tuple(range(first, first + size))))
                free[first : first + size] = [False] * size
        return placed

    def _time_block(self, first: int, size: int) -> float:
        """Return the factor of a block of ranks: it is as slow as its slowest rank."""
        return max(factor or 0.0 for factor in self.factors[first : first + size])


def _find_least(free: Sequence[bool], size: int, count: int, key: _Key) -> list[int]:
    """Find so many free blocks of ``size`` ranks, at most, by their key."""
    left, found = list(free), []
    for _ in range(count):
        firsts = [at for at in range(len(left) - size + 1) if all(left[at : at + size])]
        if not firsts:
            break
        found.append(min(firsts, key=lambda first: key(first, size)))
        left[found[-1] : found[-1] + size] = [False] * size
    return found


def _get_first(first: int, size: int) -> float:
    """Return the first rank of a block."""
    return first


def _list_slowest(placed: Sequence[_Placed]) -> list[float]:
    """List the factors of placed pipelines, the largest first."""
    return sorted((factor for _, factor, _ in placed), reverse=True)


def _is_aligned(size: int) -> bool:
    """Whether groups of a size lie on blocks that are aligned to it: powers of two."""
    return size & (size - 1) == 0


def _find_block(free: Sequence[bool], size: int, step: int) -> slice | None:
    """Find the first free block of ``size`` ranks that begins at a multiple of ``step``."""
    blocks = (slice(at, at + size) for at in range(0, len(free) - size + 1, step))
    return next((block for block in blocks if all(free[block])), None)


def _by_size(scheme: Scheme) -> tuple[int, Scheme]:
    return scheme.gpus, scheme


def make_slow_fleet(strategy: Strategy, models: Models, factors: Sequence[float]) -> Fleet:
    """Make the fleet of a strategy whose pipelines have these factors, in its order.

    A class is the pipelines of a scheme with the same factor; those of a scheme are ascending.
    """
    classes = []
    for (scheme, factor), count in Counter(zip(strategy, factors, strict=True)).items():
        of_scheme = PipelineClass.from_model(models[scheme], count)
        classes.append(slow_down(of_scheme, factor, count))
    return Fleet(strategy, tuple(classes))


def make_fleet_of(plan: Plan, models: Models) -> Fleet:
    """Make the fleet of a plan's pipelines, as slow as they are; ``KeyError`` as ``Fleet`` has."""
    in_order = sorted(plan.pipelines, key=lambda pipeline: pipeline.slowdown)
    factors: dict[Scheme, list[float]] = {}
    for pipeline in in_order:
        factors.setdefault(pipeline.scheme, []).append(pipeline.slowdown)
    strategy = plan.strategy
    return make_slow_fleet(
        strategy, models, [f for scheme, _ in strategy.counts for f in factors[scheme]]
    )


def slow_down(micro_batch: PipelineClass, factor: float, count: int) -> PipelineClass:
    """Return ``count`` pipelines whose micro-batches take ``factor`` times as long."""
    return replace(
        micro_batch,
        a=micro_batch.a * factor,
        b=micro_batch.b * factor,
        c=micro_batch.c * factor,
        count=count,
        slowdown=micro_batch.slowdown * factor,
        modes=tuple(
            replace(mode, a=mode.a * factor, b=mode.b * factor, c=mode.c * factor)
            for mode in micro_batch.modes
        ),
    )
