"""VeOmni's dynamic batches by cost: call ``install`` before the data loader is built.

from seqplan import Cost
from seqplan.integrations import veomni

veomni.install(Cost.from_profile("llama3-8b-h100-80gb", "tp1"), 32_768)

With ``dyn_bsz`` each rank fills micro-batches to a number of tokens, from its samples alone. With
``dyn_bsz_count_mode: effective`` they are then filled to equal costs, and hold up to
``dyn_bsz_physical_overflow_ratio`` times as many tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seqplan.integrations.replacement import find_original, replace
from seqplan.integrations.versions import import_with
from seqplan.planner.balance.cost import Cost

__all__ = ["EffectiveTokens", "install"]

LOADER, NAME = "veomni.data.data_loader", "get_length_fn_by_count_mode"


@dataclass(frozen=True)
class EffectiveTokens:
    """Counts a sample as its cost, in tokens of a sample of ``longest`` tokens.

    Can be pickled, as worker processes need it. ``ValueError`` for ``longest`` below 1.
    """

    cost: Cost
    longest: int

    def __post_init__(self) -> None:
        if type(self.longest) is not int or self.longest < 1:
            raise ValueError(f"longest: {self.longest!r}. Give max_seq_len, tokens of 1 or more")

    def count(self, length: int) -> int:
        """Return the effective tokens of a sample of this length, at least 1."""
        return max(1, round(self.longest * self._work(length) / self._work(self.longest)))

    def _work(self, length: int) -> float:
        return self.cost.a * length**2 + self.cost.b * length

    def __call__(self, sample: Any) -> int:
        """Return the effective tokens of a sample, or the sum of several."""
        if isinstance(sample, list):
            return sum(map(self, sample))
        return self.count(int(sample["attention_mask"].sum()))


def install(cost: Cost, longest: int) -> None:
    """Count samples by cost in VeOmni's count mode ``effective``.

    ``cost`` of a micro-batch on one data-parallel rank; ``longest``: VeOmni's ``max_seq_len``.
    ``UnsupportedVersion`` if VeOmni has no such function.
    """
    effective = EffectiveTokens(cost, longest)
    module = import_with("veomni", LOADER, NAME, known="0.1.12 has it")
    original = find_original(getattr(module, NAME))

    def find_length_function(count_mode: str) -> Any:
        return effective if count_mode == "effective" else original(count_mode)

    replace(module, NAME, find_length_function)
