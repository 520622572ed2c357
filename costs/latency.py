"""The quadratic latency model T(l, P) = a·l² + b·l + c of one pipeline stage."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

EFFICIENCY_THRESHOLD = 0.85
"""A scheme counts as well used at lengths whose time per token is within this share of its best."""

MOST_MS = 1e9
"""Milliseconds a token or micro-batch at most, days: products with lengths stay finite."""


@dataclass(frozen=True)
class Latency:
    """Forward + backward of one pipeline stage: ``a`` ms/token², ``b`` ms/token, ``c`` ms.

    c, the launch overhead, is paid once per micro-batch: a micro-batch costs
    ``Σ(a·l² + b·l) + c``. ``b_shared``: the part of b that the ranks of an expert-parallel block
    share (products of experts and their all-to-alls); 0 without expert parallelism. Raises
    ``ValueError`` for a negative or non-finite coefficient, and for a ``b_shared`` above b.
    """

    a: float
    b: float
    c: float
    b_shared: float = 0.0

    def __post_init__(self) -> None:
        for name in ("a", "b", "c", "b_shared"):
            value = getattr(self, name)
            if (
                not isinstance(value, (int, float))
                or isinstance(value, bool)
                or not math.isfinite(value)
                or not 0 <= value <= MOST_MS
            ):
                raise ValueError(
                    f"coefficient {name} must be a number from 0 to {MOST_MS:,.0f}, not {value!r}"
                )
        if self.b_shared > self.b:
            raise ValueError(
                f"coefficient b_shared {self.b_shared} is a part of b and must not exceed {self.b}"
            )
        if self.a == 0 and self.b == self.b_shared:
            shared = " but for b_shared" if self.b else ""
            raise ValueError(
                f"coefficients a and b are both 0{shared}: the scheme would take no time. State "
                "one above 0"
            )

    def scale(self, factor: float) -> Latency:
        """Return all coefficients times ``factor``."""
        return Latency(self.a * factor, self.b * factor, self.c * factor, self.b_shared * factor)

    def as_dict(self) -> dict[str, float]:
        """Return the coefficients by name, ``b_shared`` only if it is above 0."""
        shared = {"b_shared": self.b_shared} if self.b_shared else {}
        return {"a": self.a, "b": self.b, "c": self.c, **shared}

    def work_ms(self, lengths: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Compute a·l² + b·l per sequence, without c; shape as ``lengths`` (tokens)."""
        tokens = np.asarray(lengths, dtype=np.float64)
        return tokens * (self.a * tokens + self.b)

    def micro_batch_ms(self, lengths: npt.ArrayLike) -> float:
        """Compute Σ(a·l² + b·l) + c of one micro-batch of these sequences."""
        return math.fsum(self.work_ms(lengths).ravel().tolist()) + self.c

    def util_len(self, threshold: float = EFFICIENCY_THRESHOLD) -> int | None:
        """Find UtilLen: the least length whose T(l)/l is within ``threshold`` of its best.

        T(l)/l = a·l + b + c/l is least at √(c/a), with b + 2√(ac) (b as l → ∞ if a = 0).
        None if no finite length reaches it (b = a·c = 0).
        """
        best = self.b + 2 * math.sqrt(self.a * self.c)
        if self.c == 0:
            return 1
        if best == 0:
            return None
        slack = best / threshold - self.b
        # a·l² − slack·l + c ≤ 0: the smaller root, in the form that is stable for small a.
        root = 2 * self.c / (slack + math.sqrt(max(slack * slack - 4 * self.a * self.c, 0.0)))
        return max(1, math.ceil(root - 1e-9))
