"""A linear program of the batch that micro-steps of given lengths can hold.

Sequences of similar lengths are one group (``LengthGroups``). A *slot* is a micro-step and a class;
what a sequence of each group takes of one group of ranks in a slot are its *shares*: work for the
micro-step less the overhead, tokens for the memory, and the *places* of both, dual feasible
functions: of k places a sequence takes as many as parts of 1/(k + 1) that it is above. The first
micro-steps of a plan have separate lengths, the last is one more or the *pool* of all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.resources import ROUNDING
from seqplan.planner.placement.fleet import Floats, Ints, PipelineClass

ALONE, MOST_GROUPS = 12, 16
"""The longest lengths, each a separate group, and groups of similar ones among the others. With 24
and 32 bounds of 8 steps of code are the same, and a program takes 1.5 times as long."""

PLACES = (1, 2, 3)
"""Numbers of places that work and tokens have."""

RESOURCES = 2 + 2 * len(PLACES)
"""Work, tokens, and the places of each."""

Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LengthGroups:
    """Lengths (tokens, ascending), and how many sequences each stands for."""

    lengths: Ints
    numbers: Floats

    @classmethod
    def from_batch(cls, batch: Batch) -> LengthGroups:
        """List a batch's lengths."""
        return cls(batch.distinct[::-1], batch.multiplicity[::-1].astype(float))

    def group(self) -> LengthGroups:
        """Let the mean of similar lengths stand for them; the ``ALONE`` longest stay."""
        grouped = max(0, len(self.lengths) - ALONE)
        even = np.linspace(0, grouped, MOST_GROUPS + 1).round().astype(int)
        starts = np.unique(np.concatenate([even[:-1], np.arange(grouped, len(self.lengths))]))
        numbers = np.add.reduceat(self.numbers, starts)
        means = np.add.reduceat(self.lengths * self.numbers, starts) / numbers
        return LengthGroups(means.astype(np.int64), numbers)


@dataclass(frozen=True)
class ShareTables:
    """Sequences of a batch on each class, whatever the micro-step.

    ``sizes``: GPUs of a group of each class; ``overheads``: its c (ms); ``work``: (ms) and
    ``tokens``: (shares of its memory) by class and length; ``places``: of tokens, by class, number
    of places and length.
    """

    lengths: LengthGroups
    gpus: int
    sizes: Floats
    overheads: Floats
    work: Floats
    tokens: Floats
    places: Floats

    @classmethod
    def from_batch(
        cls, classes: Sequence[PipelineClass], batch: Batch, gpus: int
    ) -> tuple[ShareTables, ShareTables]:
        """Compute tables of a batch's lengths, and of its groups, without dominated classes."""
        lengths = LengthGroups.from_batch(batch)
        table = cls._compute(classes, lengths, gpus)
        costs = np.concatenate([table.overheads[:, None], table.work, table.tokens], axis=1)
        kept = [classes[k] for k in _list_undominated(table.sizes, costs)]
        return cls._compute(kept, lengths, gpus), cls._compute(kept, lengths.group(), gpus)

    @classmethod
    def _compute(
        cls, classes: Sequence[PipelineClass], lengths: LengthGroups, gpus: int
    ) -> ShareTables:
        tokens = np.stack([k.padded(lengths.lengths) / k.capacity for k in classes])
        return cls(
            lengths,
            gpus,
            np.array([float(k.gpus) for k in classes]),
            np.array([k.c for k in classes]),
            np.stack([k.work_ms(lengths.lengths) for k in classes]),
            tokens,
            _count_places(tokens),
        )

    @property
    def least_overhead_ms(self) -> float:
        """The least that a micro-step takes (ms)."""
        return float(self.overheads.min())


@dataclass(frozen=True)
class Pool:
    """All micro-steps but the first ones: their time together (ms), and their least number."""

    time_ms: float
    fewest: int


@dataclass(frozen=True)
class MicroStepProgram:
    """The micro-steps of a step, and the shares of sequences in a group's resources.

    The last micro-step is a ``pool`` or, if that is None, a single one. ``shares``: by micro-step,
    class, resource and group of lengths, 0 if a sequence does not fit; ``fits``: by micro-step,
    class and group of lengths.
    """

    tables: ShareTables
    pool: Pool | None
    shares: Floats
    fits: Booleans

    @classmethod
    def of(cls, tables: ShareTables, first_ms: Sequence[float], rest: Pool) -> MicroStepProgram:
        """State the program for the first micro-steps' lengths (ms), descending, and the rest.

        The longest of the rest leaves the others an overhead each, and is no longer than any first.
        """
        overhead_ms = tables.least_overhead_ms
        longest_ms = min([rest.time_ms - (rest.fewest - 1) * overhead_ms, *first_ms[-1:]])
        rooms_ms = np.array([*first_ms, longest_ms])[:, None] - tables.overheads
        with np.errstate(divide="ignore", invalid="ignore"):
            work = tables.work / np.where(rooms_ms > 0, rooms_ms, 0.0)[:, :, None]
        fits = (work <= 1 + ROUNDING) & (tables.tokens <= 1)
        work = np.where(fits, work, 0.0)
        shares = np.empty((len(rooms_ms), len(tables.sizes), RESOURCES, work.shape[-1]))
        shares[:, :, 0], shares[:, :, 1] = work, tables.tokens * fits
        shares[:, :, 2 : 2 + len(PLACES)] = tables.places * fits[:, :, None]
        shares[:, :, 2 + len(PLACES) :] = _count_places(work)
        pool = rest if rest.fewest > 1 else None
        if pool is not None:  # its work is for all its time
            shares[-1, :, 0] *= rooms_ms[-1][:, None] / pool.time_ms
        return cls(tables, pool, shares, fits)

    @property
    def takes_every_length(self) -> bool:
        """Whether each group of lengths has a slot."""
        return bool(self.fits.any(axis=(0, 1)).all())


def _count_places(shares: Floats) -> Floats:
    """Count the places that shares of at most 1 take, as shares: a dimension before the last.

    Shares of one micro-batch sum to at most 1, so that fewer than k + 1 parts of 1/(k + 1) are in
    it, each sequence without its last, broken one.
    """
    numbers = np.array(PLACES, dtype=float)[:, None]
    places: Floats = shares[..., None, :] * ((numbers + 1) * (1 - ROUNDING))
    np.ceil(places, out=places)
    places -= 1
    np.maximum(places, 0.0, out=places)
    np.minimum(places, numbers, out=places)
    places /= numbers
    return places


def _list_undominated(sizes: Floats, costs: Floats) -> Ints:
    """List the classes without those that others replace: as many GPUs, no more costs."""
    kept: list[int] = []
    for k in np.lexsort((costs.sum(axis=1), sizes)):
        if not any(sizes[o] == sizes[k] and (costs[o] <= costs[k]).all() for o in kept):
            kept.append(int(k))
    return np.array(sorted(kept), dtype=np.int64)
