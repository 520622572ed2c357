"""The memory model of a profile out of parsed JSON."""

from __future__ import annotations

import re
from typing import Any

from seqplan.costs.memory import Memory
from seqplan.costs.profiled_scheme import ProfileError
from seqplan.plans.format.fields import FieldReader

LARGEST = 1e18
"""Largest number of a profile: an exabyte. Products of two stay finite."""

HOST_MEMORY = "host_memory_bytes"
MEMORY_BYTES = frozenset(
    {"capacity_bytes", "context_bytes", "margin_bytes"}
    | {"resident_layer_bytes", "resident_embedding_bytes"}
)
MEMORY = MEMORY_BYTES | {"sharded_state_bytes"}
ACTIVATION = frozenset({"activation_bytes_per_token"})
MEMORY_OPTIONAL = frozenset({"loss_bytes", "resident_expert_bytes"})

_DEGREE = re.compile(r"[1-9][0-9]{0,8}")


class MemoryReader(FieldReader):
    """Reads the fields of a profile that are about memory."""

    error = ProfileError
    format = "a profile"

    def memory(self, raw: Any, activation: dict[int, float], *, tied: bool) -> Memory:
        """Read the memory model; ``tied``: whether the model's embeddings are one."""
        place = ".memory"
        stated = MEMORY_BYTES | ((MEMORY_OPTIONAL | {HOST_MEMORY}) & raw.keys())
        return Memory(
            sharded_state_bytes=self.read_sharded_states(raw, place),
            activation_bytes_per_token=activation,
            tied=tied,
            **{name: self.number(raw, name, place, LARGEST) for name in sorted(stated)},
        )

    def read_sharded_states(self, raw: Any, place: str) -> tuple[tuple[int | None, float], ...]:
        """Read the bytes of sharded states by the largest context that they hold for."""
        pairs = self.items(raw, "sharded_state_bytes", place)
        if not pairs:
            self.fail(f"{place}.sharded_state_bytes", "must be at least one [context, bytes]")
        sharded: list[tuple[int | None, float]] = []
        for index, pair in enumerate(pairs):
            here = f"{place}.sharded_state_bytes[{index}]"
            if type(pair) is not list or len(pair) != 2:
                self.fail(here, "must be [largest context in tokens or null, bytes]")
            named = {"context": pair[0], "bytes": pair[1]}
            limit = self.integer_or_null(named, "context", here, 1)
            last = sharded[-1][0] if sharded else 0
            if last is None or (limit is not None and limit <= last):
                self.fail(here, f"context {limit} does not follow {last}; null is last")
            sharded.append((limit, self.number(named, "bytes", here, LARGEST)))
        return tuple(sharded)

    def activations(self, raw: Any, field: str, place: str, least: float = 1) -> dict[int, float]:
        """Read the bytes of a token by tensor-parallel degree."""
        here = f"{place}.{field}"
        by_degree = raw[field]
        if type(by_degree) is not dict or not by_degree:
            self.fail(here, "must be an object of tp → bytes")
        activations = {}
        for degree in by_degree:
            if not _DEGREE.fullmatch(degree):
                self.fail(f"{here}.{degree}", "the key must be a tensor-parallel degree")
            activations[int(degree)] = self.number(by_degree, degree, here, LARGEST)
            if activations[int(degree)] < least:
                self.fail(f"{here}.{degree}", f"must be at least 1 byte: {by_degree[degree]:g}")
        return activations
