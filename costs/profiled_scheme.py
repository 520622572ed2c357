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

SHARED = "b_shared"
"""Field of a scheme's coefficients: the part of b that a block of expert parallelism shares."""

BUFFER = "buffer_bytes_per_token"
"""Field next to a scheme's coefficients: bytes of its transfers, above those of activations."""

SchemeKey = tuple[Scheme, int]
"""A scheme and its degree of expert parallelism: what a profile has one entry of."""

ORIGINS = ("published", "measured", "derived")
"""Where a scheme's coefficients come from: a source, samples, or the analytic model."""


class ProfileError(ValueError):
    """A profile that cannot be used; the message names the field and the reason."""


def label_entry(scheme: Scheme, expert_parallel: int) -> str:
    """Write a scheme with its degree of expert parallelism above 1: ``tp2 ep8``."""
    return f"{scheme} ep{expert_parallel}" if expert_parallel > 1 else str(scheme)


@dataclass(frozen=True)
class ProfiledScheme:
    """A scheme's latency with its provenance; ``flag`` explains a coefficient not to be trusted.

    ``origin``: one of ``ORIGINS``; ``fit``: facts of a measured fit (see ``fit``). ``latency``: of
    the mode that keeps least; ``modes``: of each mode, empty in a profile of one.
    ``expert_parallel``: ranks that hold all experts together; 1: each rank of tp has a part of all.
    ``buffers``: bytes of its transfers in each mode of the profile, per token of a micro-batch
    before division by tp·sp; empty if activations have them.
    """

    scheme: Scheme
    latency: Latency
    flag: str | None
    origin: str = "published"
    fit: Mapping[str, Any] | None = None
    modes: Mapping[str, Latency] = field(default_factory=dict)
    expert_parallel: int = 1
    buffers: tuple[float, ...] = ()

    @property
    def key(self) -> SchemeKey:
        """Scheme and degree of expert parallelism."""
        return self.scheme, self.expert_parallel

    @property
    def least_gpus(self) -> int:
        """GPUs that it requires: those of a replica, and of a block of experts on each stage."""
        return max(self.scheme.gpus, self.expert_parallel * self.scheme.pp)

    @property
    def label(self) -> str:
        """Scheme for tables, with its degree of expert parallelism above 1: ``tp2 ep8``."""
        return label_entry(self.scheme, self.expert_parallel)

    @property
    def b_shared(self) -> float:
        """Part of b that a block's ranks share (ms/token), in the mode that keeps least."""
        return self.latency.b_shared


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
