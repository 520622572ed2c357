"""Which schemes of a profile may be used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from seqplan.costs.profile import Profile
from seqplan.planner.sync.times import parse_layout


@dataclass(frozen=True)
class SchemeFilter:
    """Filters of a profile's schemes.

    ``measured``: only schemes whose coefficients are not derived; ``flagged``: also coefficients
    marked as unsound; ``layout``: only schemes of one ⟨tp, pp⟩; ``expert_parallel``: only entries
    of one degree.
    """

    measured: bool = False
    flagged: bool = False
    layout: tuple[int, int] | None = None
    expert_parallel: int | None = None

    def apply(self, profile: Profile) -> Profile:
        """Return the profile with the schemes of the filter; ``ProfileError`` if none is left."""
        if self.expert_parallel is not None:
            profile = profile.at_expert_parallel(self.expert_parallel)
        return profile.restrict(measured=self.measured, layout=self.layout)

    @classmethod
    def parse(cls, names: Sequence[str]) -> SchemeFilter:
        """Read ``measured``, ``flagged``, layouts such as ``tp4.pp2``, and degrees such as ``ep8``.

        ``ValueError`` for others.
        """
        names = tuple(dict.fromkeys(names))
        degrees = [name for name in names if re.fullmatch(r"ep[1-9][0-9]{0,5}", name)]
        if len(degrees) > 1:
            raise ValueError(
                f"must have one degree of experts: {', '.join(degrees)}. Leave the others out"
            )
        words = {"all", "measured", "flagged", *degrees}
        others = [name for name in names if name not in words]
        try:
            layouts = [parse_layout(name) for name in others]
        except ValueError as error:
            raise ValueError(f"must be measured, flagged, epE or a layout: {error}") from None
        if len(layouts) > 1:
            raise ValueError(f"must have one layout: {', '.join(others)}. Leave the others out")
        degree = int(degrees[0].removeprefix("ep")) if degrees else None
        layout = layouts[0] if layouts else None
        return cls("measured" in names, "flagged" in names, layout, degree)
