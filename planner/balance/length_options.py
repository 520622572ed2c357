"""Sequences that ``balance`` packs, and how micro-batches may hold them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.costs.latency import Latency
from seqplan.planner.argument_checks import check_kind, check_list
from seqplan.planner.balance.balanced import ModePricing
from seqplan.planner.balance.micro_batch import (
    check_lengths,
    check_modes,
    hold_at_most,
    host_micro_batch,
)
from seqplan.planner.balance.mode import Mode
from seqplan.planner.balance.shapes import check_shapes
from seqplan.planner.placement.fleet import PipelineClass


@dataclass(frozen=True)
class LengthOptions:
    """The arguments of ``balance`` that concern sequences, checked.

    ``by_mode``: the micro-batch of each of ``modes``, by ascending capacity; the last holds every
    one of ``lengths`` (tokens). ``shapes``: their number, or tokens of each, ascending.
    """

    lengths: tuple[int, ...]
    modes: tuple[Mode, ...]
    by_mode: tuple[PipelineClass, ...]
    pad_to: int
    keep_together: Sequence[object] | None
    equal_samples: bool
    shapes: int | tuple[int, ...] | None

    @classmethod
    def read(
        cls,
        lengths: Iterable[int] | npt.NDArray[np.integer] | None,
        capacity: int | None,
        cost: Latency | None,
        modes: Sequence[Mode] | None,
        *,
        pad_to: int,
        keep_together: Sequence[object] | None,
        equal_samples: bool,
        shapes: int | Sequence[int] | None,
    ) -> LengthOptions:
        """Check arguments as ``balance`` takes them; errors are those of ``balance``."""
        if lengths is None:
            raise TypeError("lengths are missing. Give the tokens of each sequence, or loads")
        chosen = check_modes(capacity, cost, modes)
        by_mode = [host_micro_batch(mode, pad_to) for mode in chosen]
        whole = check_lengths(lengths, by_mode[-1], pad_to)
        if keep_together is not None:
            check_list("keep_together", keep_together, "keys, one for each sequence")
            for key in keep_together:
                check_kind("keep_together", key, Hashable, "text, numbers or tuples as keys")
        if keep_together is not None and len(keep_together) != len(whole):
            raise ValueError(
                f"keep_together has {len(keep_together)} keys for {len(whole)} sequences"
                ". Give one key for each sequence"
            )
        if shapes is not None:
            if keep_together is not None or equal_samples:
                raise ValueError(
                    "shapes with keep_together or equal_samples: sequences are exchanged one by "
                    "one to fill a shape. Leave one of them out"
                )
            shapes = check_shapes(shapes, by_mode[-1].pad(max(whole)), by_mode[-1].capacity)
            if not isinstance(shapes, int):
                by_mode = [hold_at_most(mode, shapes[-1]) for mode in by_mode]
        return cls(
            tuple(whole), chosen, tuple(by_mode), pad_to, keep_together, equal_samples, shapes
        )

    @property
    def pricing(self) -> ModePricing:
        """Return the costs of micro-batches that are padded to no shape."""
        return ModePricing(self.lengths, self.modes, self.pad_to)
