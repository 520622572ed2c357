"""Profiles whose costs are wrong by known amounts, to see what plans lose by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqplan.costs.profile import Profile
from seqplan.costs.profiled_scheme import DEGREES, SHARED

COEFFICIENTS = ("a", "b", "c")
DIGITS = 12
"""Significant digits of a changed coefficient."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CostError:
    """How far costs are off: factors of coefficients, milliseconds of c, or both.

    - ``factors``: of a, b and c of all schemes; ``wide``: of all three, of schemes with context
      parallelism (ulysses · ring above 1) alone.
    - ``rank_ms``: added to c for each rank of context parallelism beyond the first.
    - ``spread``: each coefficient of each scheme has a factor from 1 − spread to 1 + spread, drawn
      by ``seed``; of a scheme the same in all recomputation modes.
    """

    name: str
    factors: tuple[float, float, float] = (1.0, 1.0, 1.0)
    wide: float = 1.0
    rank_ms: float = 0.0
    spread: float = 0.0
    seed: int = 0

    def apply(self, profile: Profile) -> Profile:
        """Return the profile with these errors, under another digest."""
        draw = np.random.default_rng(self.seed)
        schemes = [
            self._change(raw, draw.uniform(1 - self.spread, 1 + self.spread, 3))
            for raw in profile.document["schemes"]
        ]
        document = {**profile.document, "schemes": schemes}
        return Profile.from_document(document, profile.name, contradiction=1.0)

    def _change(self, raw: Mapping[str, Any], drawn: Any) -> dict[str, Any]:
        degrees = {axis: raw.get(axis, 1) for axis in DEGREES}
        ranks = degrees["ulysses"] * degrees["ring"]
        factors = np.array(self.factors) * drawn * (self.wide if ranks > 1 else 1.0)
        added = self.rank_ms * (ranks - 1)

        def change(coefficients: Mapping[str, Any]) -> dict[str, Any]:
            values = [
                coefficients[name] * factor for name, factor in zip("abc", factors, strict=True)
            ]
            values[2] += added
            rounded = [float(f"{value:.{DIGITS}g}") for value in values]
            changed = dict(zip(COEFFICIENTS, rounded, strict=True))
            if SHARED in coefficients:
                share = coefficients[SHARED] / (coefficients["b"] or 1.0)
                changed[SHARED] = min(share, 1.0) * changed["b"]
            return {**coefficients, **changed}

        if "modes" in raw:
            return {**raw, "modes": {name: change(mode) for name, mode in raw["modes"].items()}}
        return change(raw)


def list_corners(share: float) -> tuple[CostError, ...]:
    """List errors of one coefficient at a time, up and down by a share."""
    return tuple(
        CostError(
            name=f"{name} {100 * (factor - 1):+g} %",
            factors=(
                factor if name == "a" else 1.0,
                factor if name == "b" else 1.0,
                factor if name == "c" else 1.0,
            ),
        )
        for factor in (1 + share, 1 - share)
        for name in COEFFICIENTS
    )
