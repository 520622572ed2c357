"""Schemes of a profile with their latency, and measured times of gradient synchronization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seqplan.costs.latency import Latency
from seqplan.plans.scheme import Scheme

PROFILE_SCHEMA = 2

DEGREES = ("tp", "pp", "ulysses", "ring")
"""Fields of a scheme's entry that may be left out if they are 1."""

ORIGINS = ("published", "measured", "derived")
"""Where a scheme's coefficients come from: a source, samples, or the analytic model."""


class ProfileError(ValueError):
    """A profile that cannot be used; the message names the field and the reason."""


@dataclass(frozen=True)
class ProfiledScheme:
    """A scheme's latency with its provenance; ``flag`` explains a coefficient not to be trusted.

    ``origin``: one of ``ORIGINS``; ``fit``: facts of a measured fit (see ``fit``). ``latency``: of
    the mode that keeps least; ``modes``: of each mode, empty in a profile of one.
    """

    scheme: Scheme
    latency: Latency
    flag: str | None
    origin: str = "published"
    fit: Mapping[str, Any] | None = None
    modes: Mapping[str, Latency] = field(default_factory=dict)


@dataclass(frozen=True)
class MeasuredSync:
    """Sync of the whole model between pipelines of ⟨tp, pp⟩ on ``gpus`` GPUs (ms).

    None of it hidden; ``optimizer_ms``: the optimizer's step on the states of a rank of as many.
    """

    tp: int
    pp: int
    gpus: int
    ms: float
    optimizer_ms: float
