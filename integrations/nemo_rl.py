"""NeMo-RL's sequence packing, planned: call ``install`` in the driver, before training.

from seqplan.integrations import nemo_rl
nemo_rl.install()                    # SEQPLAN_PROFILE and SEQPLAN_SCHEME, or SEQPLAN_COST

NeMo-RL packs the sequences of a global batch into bins on the driver. Bin i is of data-parallel
rank i modulo the ranks, and all ranks have equally many, which run together.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from seqplan.integrations.degree_costs import costs_of_environment
from seqplan.integrations.replacement import describe_plan, find_original, replace_everywhere
from seqplan.integrations.versions import import_with
from seqplan.planner.balance.balance_ranks import balance
from seqplan.planner.balance.cost import Cost

__all__ = ["PlannedPacker", "figures", "install"]

logger = logging.getLogger(__name__)

ALGORITHMS, NAME = "nemo_rl.data.packing.algorithms", "get_packer"

figures: dict[str, float] = {}
"""``predicted_ms``, ``gap`` and ``imbalance`` of the last batch that was planned."""


class PlannedPacker:
    """Packs a batch for all ranks together; NeMo-RL's packer if it cannot be planned.

    ``capacity``: tokens of a bin; ``ranks``: the number of bins is a multiple of it.
    """

    def __init__(self, capacity: int, ranks: int, cost: Cost, fallback: Any) -> None:
        self._capacity, self._ranks, self._cost = capacity, ranks, cost
        self._fallback = fallback

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of NeMo-RL's packer, as its metrics."""
        return getattr(self._fallback, name)

    def pack(self, sequence_lengths: Sequence[int]) -> list[list[int]]:
        """Return places by bin, for padded lengths (tokens)."""
        lengths = [int(length) for length in sequence_lengths]
        try:
            balanced = balance(lengths, self._ranks, self._capacity, self._cost)
            of_ranks = balanced.micro_batches
            if not all(micro for of_rank in of_ranks for micro in of_rank):
                raise ValueError(f"{len(lengths)} sequences are too few for {self._ranks} ranks")
        except ValueError as error:
            logger.warning("%s: this batch is packed as NeMo-RL does it", error)
            packed: list[list[int]] = self._fallback.pack(sequence_lengths)
            return packed
        figures.update(describe_plan(balanced))
        return [list(micro) for micros in zip(*of_ranks, strict=True) for micro in micros]


def install(cost: Cost | None = None) -> None:
    """Put planned packers in the place of NeMo-RL's; ``cost`` of one rank, or the environment's.

    ``UnsupportedVersion`` if NeMo-RL has no such function.
    """
    known = costs_of_environment()[1] if cost is None else cost
    supported = "that of 2026 (main of August) has it"
    module = import_with("nemo-rl", ALGORITHMS, NAME, known=supported)
    original = find_original(getattr(module, NAME))

    def get_packer(
        algorithm: Any,
        bin_capacity: int,
        collect_metrics: bool = False,
        min_bin_count: int | None = None,
        bin_count_multiple: int | None = None,
    ) -> Any:
        """Return the planned packer of a batch over ranks, else NeMo-RL's."""
        theirs = original(
            algorithm, bin_capacity, collect_metrics, min_bin_count, bin_count_multiple
        )
        if bin_count_multiple is None or min_bin_count != bin_count_multiple:
            return theirs  # not of ranks
        return PlannedPacker(bin_capacity, bin_count_multiple, known, theirs)

    replace_everywhere("nemo_rl", module, NAME, get_packer)
