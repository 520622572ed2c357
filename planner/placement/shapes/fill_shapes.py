"""Micro-batches that fill given sizes: sizes for each pipeline, and exchanges until all fits.

A pipeline takes b·size + c for each micro-batch, padding included, and a·l² for each sequence.
Within a time limit, the sizes of its micro-batches leave it tokens to fill and work to add:
sequences have to meet both. They are assigned once and then exchanged until nothing is above its
limit. If no exchange helps, a pipeline gets other sizes, and at last the time limit rises.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.draws import Draws
from seqplan.planner.placement.fleet import Floats, Ints
from seqplan.planner.placement.shapes.assign_shapes import (
    SPREAD,
    MicroBatches,
    SizedClass,
    Sizes,
    assign_sizes,
)
from seqplan.planner.placement.shapes.change_sizes import change_sizes
from seqplan.planner.placement.shapes.exchange_sized import NOTHING, SizedBatches, exchange_sized

STARTS = ((4e-3, 1e-3), (4e-3, 3e-3), (4e-3, 5e-3), (8e-3, 2e-3))
"""Tried each: the time limit over that of free sizes, and the share of the tokens that the sizes
have room for beyond all of them. The first two leave 0.52 % extra tokens, all four 0.39 %
(llama-32b, 64 GPUs, code up to 32K, 8 sizes)."""

RAISE, RAISES = 2.5e-3, 24
"""The share by which the time limit rises, and how often at most."""

SPREAD_RAISES = 18
"""Raises after which a larger sum of sizes no longer counts as excess: a few tokens above a size
else keep one pipeline above its limits while all others have time left. After 10, steps of
llama3-8b up to 8K take 0.2 % longer."""

MOST_CHANGES = 2_000
"""Exchanges and changes of sizes; steps of 560 sequences on 64 GPUs need some 500."""


def fill_shapes(
    classes: Sequence[SizedClass],
    batch: Batch,
    micro_batches: Sequence[MicroBatches],
    time_ms: float,
) -> list[list[MicroBatches]]:
    """List ways to fill sizes, until one is within its limits.

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
            within = filled.fit()
            if filled.is_held():
                ways.append(filled.list_micro_batches())
                if within:
                    break
    return ways


class _SizedMicroBatches:
    """Micro-batches of given sizes, with their sequences, and a time limit for all pipelines."""

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
        self._squares: Floats = lengths.astype(np.float64) ** 2
        distinct = list(dict.fromkeys(classes))
        self._row: Ints = np.array([distinct.index(k) for k in classes])
        padded = np.stack([k.pipeline_class.padded(lengths) for k in distinct])
        self._padded: Floats = padded.astype(np.float64)
        self._orders: list[Ints] = [np.argsort(-of, kind="stable") for of in padded]
        self._gpus: Floats = np.array([float(k.pipeline_class.gpus) for k in classes])
        self._largest: Floats = np.array([float(k.sizes[-1]) for k in classes])
        self._draws = Draws()
        self._spread = SPREAD
        self._set(sizes, assigned, np.zeros(len(classes), dtype=np.int64))

    def fit(self) -> bool:
        """Exchange sequences and sizes until all is within its limits, or nothing helps.

        Returns whether all is within the first time limit.
        """
        left, raises = MOST_CHANGES, 0
        while left > 0:
            settled = self._batches.settled
            stuck, made = exchange_sized(self._batches, self._limit_ms, left, self._draws)
            left -= made + 1
            if stuck != NOTHING:
                if not self._change_sizes(stuck):
                    settled[stuck] = 1
            elif not settled.any() or raises == RAISES:
                return not raises and not settled.any()
            else:
                self._limit_ms *= 1 + RAISE
                raises += 1
                if raises == SPREAD_RAISES:
                    self._spread = 0.0
                settled[:] = 0
        return False

    def is_held(self) -> bool:
        """Whether no micro-batch exceeds the largest size of its class."""
        batches = self._batches
        return bool((batches.tokens <= self._largest[batches.pipeline]).all())

    def list_micro_batches(self) -> list[MicroBatches]:
        """List positions by pipeline and micro-batch, without empty ones."""
        return [[micro for micro in of if micro] for of in self._list_contents()]

    def _list_contents(self) -> list[MicroBatches]:
        contents: list[MicroBatches] = [[[] for _ in of] for of in self._of_pipeline]
        flat = [micro for of in contents for micro in of]
        for i, place in enumerate(self._batches.owner.tolist()):
            flat[place].append(i)
        return contents

    def _set(self, sizes: Sequence[Sizes], contents: Sequence[MicroBatches], settled: Ints) -> None:
        self._of_pipeline = list(sizes)
        number = [len(of) for of in sizes]
        pipeline: Ints = np.repeat(np.arange(len(sizes)), number)
        of_place: Floats = np.array([float(size) for of in sizes for size in of])
        in_order = [k for k, n in zip(self._classes, number, strict=True) for _ in range(n)]
        modes = [k.modes[int(z)] for k, z in zip(in_order, of_place, strict=True)]
        a: Floats = np.array([mode.a for mode in modes])
        owner: Ints = np.zeros(len(self._squares), dtype=np.int64)
        for place, micro in enumerate(micro for of in contents for micro in of):
            owner[micro] = place
        padded = self._padded[self._row[pipeline[owner]], np.arange(len(owner))]
        work_ms = a[owner] * self._squares
        self._batches = SizedBatches(
            padded=self._padded,
            squares=self._squares,
            owner=owner,
            pipeline=pipeline,
            sizes=of_place,
            tokens=np.bincount(owner, padded, len(of_place)).astype(float),
            a=a,
            weight=np.array([mode.b for mode in modes]) * self._gpus[pipeline],
            row=self._row,
            gpus=self._gpus,
            largest=self._largest,
            fixed_ms=np.array(
                [k.compute_fixed_ms(of) for k, of in zip(self._classes, sizes, strict=True)]
            ),
            work_ms=np.bincount(pipeline[owner], work_ms, len(sizes)).astype(float),
            settled=settled,
        )

    def _change_sizes(self, top: int) -> bool:
        """Give a pipeline the sizes that leave least excess, if that is less than now."""
        changed = change_sizes(
            self._classes[top],
            self._batches,
            self._orders[int(self._row[top])],
            top,
            self._of_pipeline[top],
            self._limit_ms,
            self._spread,
        )
        if changed is None:
            return False
        contents = self._list_contents()
        self._of_pipeline[top], contents[top] = changed
        settled = self._batches.settled
        settled[top] = 0
        self._set(self._of_pipeline, contents, settled)
        return True
