"""One micro-batch of a plan as a rank sees it: its sequences and the tokens held there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from seqplan.plans.groups import Coordinates
from seqplan.plans.plan import MicroBatch, Plan
from seqplan.plans.recomputation import write_mode
from seqplan.plans.scheme import Scheme
from seqplan.plans.views.sharding import Range, list_held_ranges, ring_tokens, ulysses_piece


@dataclass(frozen=True, slots=True)
class SequenceShare:
    """A rank's part of one sequence.

    ``position`` in the plan's sequences, ``id`` the sample's index in the data set, ``length`` the
    whole sequence's tokens; ``ranges``: the token ranges held, at most two, none where empty.
    """

    position: int
    id: int
    length: int
    ranges: tuple[Range, ...]

    @property
    def is_ended(self) -> bool:
        """Whether its last token is held here."""
        return bool(self.ranges) and self.ranges[-1][1] == self.length


@dataclass(frozen=True, slots=True)
class MicroBatchView:
    """One micro-batch as a rank sees it; token counts unless stated otherwise.

    - ``sequences``: all of the micro-batch in packed order, those held nowhere here included.
    - ``tokens``: of the whole micro-batch; ``padded_lengths``: ``Scheme.pad_sequence`` of each
      sequence; ``ring_lengths``: of each sequence in this ring rank's buffer, which is what
      attention sees after the Ulysses sync; ``local_tokens``: held here.
    - ``padded_local_tokens`` ≥ ``local_tokens``: slots to reserve here, the same on every rank of
      the pipeline: the micro-batch's padded tokens / (ulysses · ring). The ranks of a tp group
      share them.
    - ``recompute``: its recomputation mode, None if the profile has one.
    - ``loads``: tokens of each sequence in each phase before the language model, by its name.
    """

    sequences: tuple[SequenceShare, ...]
    tokens: int
    padded_lengths: tuple[int, ...]
    ring_lengths: tuple[int, ...]
    local_tokens: int
    padded_local_tokens: int
    cost_ms: float
    recompute: str | None = None
    loads: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)

    def cu_seqlens(self) -> npt.NDArray[np.int32]:
        """Return the offsets of whole sequences in packed order: int32, shape (sequences + 1,)."""
        return _offsets([share.length for share in self.sequences])

    def ring_cu_seqlens(self) -> npt.NDArray[np.int32]:
        """Return the offsets in this ring rank's buffer: int32, shape (sequences + 1,)."""
        return _offsets(self.ring_lengths)

    def pad_cu_seqlens(self) -> npt.NDArray[np.int32]:
        """Return the offsets of whole sequences, each padded: int32, shape (sequences + 1,).

        For kernels that want multiples of 2·ring; the sharding here needs no padding.
        """
        return _offsets(self.padded_lengths)

    def positions(self) -> npt.NDArray[np.int64]:
        """Return each held token's position in its sequence: int64, shape (local_tokens,)."""
        ranges = [held for share in self.sequences for held in share.ranges]
        if not ranges:
            return np.empty(0, dtype=np.int64)
        return np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in ranges])

    def document_lengths(self) -> npt.NDArray[np.int64]:
        """Return the tokens of each held token's whole sequence: int64, shape (local_tokens,)."""
        held = [sum(stop - start for start, stop in share.ranges) for share in self.sequences]
        lengths = np.array([share.length for share in self.sequences], dtype=np.int64)
        return np.repeat(lengths, held)


def make_micro_batch_view(
    plan: Plan, scheme: Scheme, at: Coordinates, batch: MicroBatch
) -> MicroBatchView:
    """Return a micro-batch as the rank at these coordinates sees it."""
    lengths = [plan.lengths[position] for position in batch.sequences]
    ring_lengths = tuple([ring_tokens(length, scheme.ring, at.ring) for length in lengths])
    piece = ulysses_piece(sum(ring_lengths), scheme.ulysses, at.ulysses)
    held = list_held_ranges(lengths, scheme.ring, at.ring, piece)
    return MicroBatchView(
        sequences=tuple(
            [
                SequenceShare(position, plan.ids[position], length, ranges)
                for position, length, ranges in zip(batch.sequences, lengths, held, strict=True)
            ]
        ),
        tokens=batch.tokens,
        padded_lengths=tuple(map(scheme.pad_sequence, lengths)),
        ring_lengths=ring_lengths,
        local_tokens=piece[1] - piece[0],
        padded_local_tokens=batch.padded_tokens // scheme.sp,
        cost_ms=batch.cost_ms,
        recompute=batch.recompute,
        loads={
            load.name: tuple([load.tokens[position] for position in batch.sequences])
            for load in plan.loads
        },
    )


def micro_batch_fields(view: MicroBatchView) -> dict[str, Any]:
    """Return a micro-batch as JSON values; all cu_seqlens are written out."""
    return {
        "sequences": [
            {
                "position": share.position,
                "id": share.id,
                "length": share.length,
                "ranges": [list(held) for held in share.ranges],
            }
            for share in view.sequences
        ],
        "tokens": view.tokens,
        "local_tokens": view.local_tokens,
        "padded_local_tokens": view.padded_local_tokens,
        "cu_seqlens": list(accumulate((share.length for share in view.sequences), initial=0)),
        "padded_cu_seqlens": list(accumulate(view.padded_lengths, initial=0)),
        "ring_cu_seqlens": list(accumulate(view.ring_lengths, initial=0)),
        "cost_ms": view.cost_ms,
        **write_mode(view.recompute),
        **({"loads": {name: list(of) for name, of in view.loads.items()}} if view.loads else {}),
    }


def _offsets(lengths: list[int] | tuple[int, ...]) -> npt.NDArray[np.int32]:
    return np.fromiter(accumulate(lengths, initial=0), dtype=np.int32, count=len(lengths) + 1)
