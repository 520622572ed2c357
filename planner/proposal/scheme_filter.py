"""Which schemes of a profile may be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seqplan.planner.sync.times import parse_layout


@dataclass(frozen=True)
class SchemeFilter:
    """Filters of a profile's schemes.

    ``measured``: only schemes whose coefficients are not derived; ``flagged``: also coefficients
    marked as unsound; ``layout``: only schemes of one ⟨tp, pp⟩.
    """

    measured: bool = False
    flagged: bool = False
    layout: tuple[int, int] | None = None

    @classmethod
    def parse(cls, names: Sequence[str]) -> SchemeFilter:
        """Read ``measured``, ``flagged`` and layouts, such as ``tp4.pp2``; ``ValueError``."""
        layouts = [name for name in names if name not in ("all", "measured", "flagged")]
        if len(layouts) > 1:
            raise ValueError(f"must have one layout: {', '.join(layouts)}")
        try:
            layout = parse_layout(layouts[0]) if layouts else None
        except ValueError as error:
            raise ValueError(f"must be measured, flagged or a layout: {error}") from None
        return cls("measured" in names, "flagged" in names, layout)
