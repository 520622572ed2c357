"""Micro-batches that fill given sizes: sizes for each pipeline, and exchanges until all fits.

A pipeline takes b·size + c for each micro-batch, padding included, and a·l² for each sequence.
Within a time limit, the sizes of its micro-batches leave it tokens to fill and work to add:
sequences have to meet both. They are assigned once and then exchanged until nothing is above its
limit. If no exchange helps, a pipeline gets other sizes, and at last the time limit rises.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.assign_shapes import (
    SPREAD,
    MicroBatches,
    SizedClass,
    Sizes,
    assign_sizes,
)
from seqplan.planner.placement.fleet import Floats, Ints

STARTS = ((4e-3, 1e-3), (4e-3, 3e-3), (4e-3, 5e-3), (8e-3, 2e-3))
"""Tried each: the time limit over that of free sizes, and the share of the tokens that the sizes
have room for beyond all of them. The first two leave 0.52 % extra tokens, all four 0.39 %
(llama-32b, 64 GPUs, code up to 32K, 8 sizes)."""

RAISE, RAISES = 2.5e-3, 24
"""The share by which the time limit rises, and how often at most."""

DRAWN = 3_000
"""Exchanges compared for one that is made."""

MOST_CHANGES = 2_000
"""Exchanges and changes of sizes; steps of 560 sequences on 64 GPUs need some 500."""

ABOVE_ALL = 3.0
"""Weight, beyond 1, of tokens above the largest size, which no other sizes can hold."""

NOTHING = -1
"""Stands for no sequence."""


def fill_shapes(
    classes: Sequence[SizedClass],
    batch: Batch,
    micro_batches: Sequence[MicroBatches],
    time_ms: float,
) -> list[list[MicroBatches]]:
    """List ways to fill sizes, at most one for each start.

    ``classes`` and ``micro_batches``: of each pipeline, its class and positions in the batch as
    placed for free sizes, of which the slowest takes ``time_ms``. Equal arguments give equal
    results.
    """
    ways = []
    for first, slack in STARTS:
        limit_ms = time_ms * (1 + first)
        assigned = assign_sizes(classes, batch, micro_batches, slack, limit_ms)
        if assigned is not None:
            filled = _SizedMicroBatches(classes, batch, *assigned, limit_ms)
            filled.fit()
            if filled.is_held():
                ways.append(filled.list_micro_batches())
    return ways


class _SizedMicroBatches:
    """Micro-batches of given sizes, with what they hold, and a time limit for all pipelines.

    Arrays by micro-batch: ``sizes``, ``tokens``, ``pipeline``, ``a`` and ``weight`` (GPU-ms of a
    token above its size). By pipeline: ``work_ms``, Σ a·l², and ``fixed_ms``.
    """

    def __init__(
        self,
        classes: Sequence[SizedClass],
        batch: Batch,
        sizes: Sequence[Sizes],
        assigned: Sequence[MicroBatches],
        limit_ms: float,
    ) -> None:
        self._classes, self._limit_ms = classes, limit_ms
        lengths: Ints = np.array(batch.lengths, dtype=np.int64)
        self._squares: Floats = np.append(lengths.astype(np.float64) ** 2, 0.0)
        distinct = list(dict.fromkeys(classes))
        self._row: Ints = np.array([distinct.index(k) for k in classes])
        """Row of a pipeline's class in ``_padded``, whose last column is of ``NOTHING``."""
        padded = np.stack([k.pipeline_class.padded(lengths) for k in distinct])
        self._padded: Floats = np.pad(padded.astype(np.float64), ((0, 0), (0, 1)))
        self._gpus: Floats = np.array([float(k.pipeline_class.gpus) for k in classes])
        self._largest: Floats = np.array([float(k.sizes[-1]) for k in classes])
        self._rng = np.random.default_rng(0)
        self._owner: Ints = np.zeros(len(lengths), dtype=np.int64)
        self._set(sizes, assigned)

    def fit(self) -> None:
        """Exchange sequences and sizes until all is within its limits, or nothing helps."""
        settled = np.zeros(len(self._classes), dtype=bool)
        raises = 0
        for _ in range(MOST_CHANGES):
            excess = np.where(settled, 0.0, self._list_excess())
            top = int(excess.argmax())
            if excess[top] > 0:
                changed = self._exchange(top) or self._change_sizes(top)
                if changed is None:
                    settled[top] = True
                else:
                    settled[changed] = False
            elif not settled.any() or raises == RAISES:
                return
            else:
                self._limit_ms *= 1 + RAISE
                raises += 1
                settled[:] = False

    def is_held(self) -> bool:
        """Whether no micro-batch exceeds the largest size of its class."""
        return bool((self._tokens <= self._largest[self._pipeline]).all())

    def list_micro_batches(self) -> list[MicroBatches]:
        """List positions by pipeline and micro-batch, without empty ones."""
        return [[micro for micro in of if micro] for of in self._list_contents()]

    def _list_contents(self) -> list[MicroBatches]:
        contents: list[MicroBatches] = [[] for _ in self._classes]
        for place, pipeline in enumerate(self._pipeline.tolist()):
            contents[pipeline].append(np.flatnonzero(self._owner == place).tolist())
        return contents

    def _set(self, sizes: Sequence[Sizes], contents: Sequence[MicroBatches]) -> None:
        self._of_pipeline = list(sizes)
        number = [len(of) for of in sizes]
        self._pipeline: Ints = np.repeat(np.arange(len(sizes)), number)
        self._sizes: Floats = np.array([float(size) for of in sizes for size in of])
        in_order = [k for k, n in zip(self._classes, number, strict=True) for _ in range(n)]
        modes = [k.find_mode(int(z)) for k, z in zip(in_order, self._sizes, strict=True)]
        self._a: Floats = np.array([mode.a for mode in modes])
        self._weight = np.array([mode.b for mode in modes]) * self._gpus[self._pipeline]
        self._fixed_ms: Floats = np.array(
            [k.compute_fixed_ms(of) for k, of in zip(self._classes, sizes, strict=True)]
        )
        for place, micro in enumerate(micro for of in contents for micro in of):
            self._owner[micro] = place
        rows = self._row[self._pipeline[self._owner]]
        padded = self._padded[rows, np.arange(len(self._owner))]
        self._tokens: Floats = np.bincount(self._owner, padded, len(self._sizes)).astype(float)
        work_ms = self._a[self._owner] * self._squares[:-1]
        in_pipeline = self._pipeline[self._owner]
        self._work_ms: Floats = np.bincount(in_pipeline, work_ms, len(sizes)).astype(float)

    def _weigh_tokens(self, tokens: Floats, places: Ints) -> Floats:
        """Weigh the tokens that are above sizes (GPU-ms)."""
        above = np.maximum(tokens - self._sizes[places], 0.0)
        above_all = np.maximum(tokens - self._largest[self._pipeline[places]], 0.0)
        weighed: Floats = self._weight[places] * (above + ABOVE_ALL * above_all)
        return weighed

    def _weigh_work(self, work_ms: Floats, pipelines: Ints) -> Floats:
        """Weigh the work that is above the limit (GPU-ms)."""
        left_ms = self._limit_ms - self._fixed_ms[pipelines]
        weighed: Floats = self._gpus[pipelines] * np.maximum(work_ms - left_ms, 0.0)
        return weighed

    def _list_excess(self) -> Floats:
        number = len(self._classes)
        of_tokens = self._weigh_tokens(self._tokens, np.arange(len(self._sizes)))
        excess: Floats = np.bincount(self._pipeline, of_tokens, number).astype(float)
        excess += self._weigh_work(self._work_ms, np.arange(number))
        return np.where(excess > 1e-9, excess, 0.0)

    def _exchange(self, top: int) -> list[int] | None:
        """Make the best of drawn exchanges with a pipeline; the pipelines that took part.

        Up to two sequences of a micro-batch go to another, for up to two of its sequences.
        """
        given, taken, source, target = self._draw(top)
        if not len(source):
            return None
        row = self._row[top]
        target_pipeline = self._pipeline[target]
        target_row = self._row[target_pipeline]
        tokens, squares = self._padded, self._squares
        into = _add(tokens, row, taken) - _add(tokens, row, given)
        out = _add(tokens, target_row, given) - _add(tokens, target_row, taken)
        change = self._weigh_tokens(self._tokens[source] + into, source)
        change -= self._weigh_tokens(self._tokens[source], source)
        change += self._weigh_tokens(self._tokens[target] + out, target)
        change -= self._weigh_tokens(self._tokens[target], target)
        more = squares[taken].sum(axis=0) - squares[given].sum(axis=0)
        inside = target_pipeline == top
        target_ms = self._a[target] * more
        top_ms = self._work_ms[top] + self._a[source] * more - np.where(inside, target_ms, 0.0)
        tops = np.full(len(source), top)
        change += self._weigh_work(top_ms, tops)
        change -= self._weigh_work(self._work_ms[tops], tops)
        others = self._work_ms[target_pipeline]
        other_change = self._weigh_work(others - target_ms, target_pipeline)
        other_change -= self._weigh_work(others, target_pipeline)
        change += np.where(inside, 0.0, other_change)
        fits = tokens[row, taken].max(axis=0) <= self._largest[top]
        fits &= tokens[target_row, given].max(axis=0) <= self._largest[target_pipeline]
        change = np.where(fits, change, np.inf)
        best = int(change.argmin())
        if not change[best] < -1e-7:
            return None
        for sequences, place in ((given, target[best]), (taken, source[best])):
            held = sequences[:, best]
            self._owner[held[held != NOTHING]] = place
        both = [int(source[best]), int(target[best])]
        self._tokens[both] += [into[best], out[best]]
        self._work_ms[top] = top_ms[best]
        if not inside[best]:
            self._work_ms[target_pipeline[best]] -= target_ms[best]
        return [top, int(target_pipeline[best])]

    def _draw(self, top: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Draw exchanges: sequences given and taken, both (2, m), and the two micro-batches."""
        integers = self._rng.integers
        by_owner = np.argsort(self._owner, kind="stable")
        counts = np.bincount(self._owner, minlength=len(self._sizes))
        firsts = np.cumsum(counts) - counts

        def draw_second(first: Ints, places: Ints) -> Ints:
            second = by_owner[firsts[places] + integers(0, counts[places])]
            alone = (second == first) | (integers(0, 2, len(first)) == 0)
            return np.where(alone, NOTHING, second).astype(np.int64)

        mine = np.flatnonzero(self._pipeline[self._owner] == top)
        given = mine[integers(0, len(mine), DRAWN)]
        source = self._owner[given]
        places = len(self._sizes)
        drawn = integers(0, len(self._owner) + places, DRAWN)
        is_place = drawn >= len(self._owner)
        taken: Ints = np.where(is_place, NOTHING, drawn).astype(np.int64)
        target = np.where(is_place, drawn - len(self._owner), self._owner[taken])
        keep = source != target
        given, source, taken, target = given[keep], source[keep], taken[keep], target[keep]
        second = np.full(len(taken), NOTHING)
        some = taken != NOTHING
        second[some] = draw_second(taken[some], target[some])
        return (
            np.stack([given, draw_second(given, source)]),
            np.stack([taken, second]),
            source,
            target,
        )

    def _change_sizes(self, top: int) -> list[int] | None:
        """Give a pipeline the sizes that leave least excess, if that is less than now."""
        k, number = self._classes[top], len(self._of_pipeline[top])
        contents = self._list_contents()
        items = [i for micro in contents[top] for i in micro]
        padded = self._padded[self._row[top]]
        order = sorted(items, key=lambda i: (-padded[i], i))
        held, tokens = sum(self._of_pipeline[top]), float(padded[items].sum())
        work_ms = float(self._work_ms[top])
        least, best = float(self._list_excess()[top]) - 1e-6, None
        for sizes in k.list_choices(number):
            above_ms = k.compute_fixed_ms(sizes) + work_ms - self._limit_ms
            missing_ms = (tokens - sum(sizes)) * k.pipeline_class.b
            if self._gpus[top] * max(above_ms, missing_ms) >= least:
                continue
            more = SPREAD * self._gpus[top] * k.pipeline_class.b * max(sum(sizes) - held, 0)
            for fullest in (True, False):
                packed = _pack(padded, order, sizes, fullest=fullest)
                excess = more + self._weigh_sizes(top, sizes, packed)
                if excess < least:
                    least, best = excess, (sizes, packed)
        if best is None:
            return None
        self._of_pipeline[top], contents[top] = best
        self._set(self._of_pipeline, contents)
        return [top]

    def _weigh_sizes(self, top: int, sizes: Sizes, packed: MicroBatches) -> float:
        """Weigh what a pipeline's micro-batches of other sizes are above its limits (GPU-ms)."""
        k, padded = self._classes[top], self._padded[self._row[top]]
        excess, work_ms = 0.0, k.compute_fixed_ms(sizes)
        for size, micro in zip(sizes, packed, strict=True):
            mode, tokens = k.find_mode(size), float(padded[micro].sum())
            above = max(tokens - size, 0.0) + ABOVE_ALL * max(tokens - k.sizes[-1], 0.0)
            excess += mode.b * above
            work_ms += mode.a * float(self._squares[micro].sum())
        return float(self._gpus[top]) * (excess + max(work_ms - self._limit_ms, 0.0))


def _add(values: Floats, row: npt.NDArray[np.int64] | int, pair: Ints) -> Floats:
    """Add the values of up to two sequences each, (m,)."""
    added: Floats = values[row, pair[0]] + values[row, pair[1]]
    return added


def _pack(padded: Floats, order: Sequence[int], sizes: Sizes, *, fullest: bool) -> MicroBatches:
    """Pack sequences into the fullest or emptiest micro-batch that holds them.

    If none does, into that of most room.
    """
    room = [float(size) for size in sizes]
    packed: MicroBatches = [[] for _ in sizes]
    for i in order:
        tokens = float(padded[i])
        fitting = [place for place, left in enumerate(room) if left >= tokens]
        choose = min if fullest and fitting else max
        place = choose(fitting or range(len(room)), key=room.__getitem__)
        packed[place].append(i)
        room[place] -= tokens
    return packed
