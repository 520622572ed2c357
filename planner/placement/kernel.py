"""The compiled fill: whether it is used, and its interface, that of ``PythonFill``.

The environment variable ``SEQPLAN_KERNEL=python`` leaves it out; plans are the same either way.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from seqplan.planner.placement.fleet import ClassPlacement, Ints, PipelineClass
from seqplan.planner.placement.mode_fill import ModeTables, find_table

try:
    from seqplan.planner.placement import fill_kernel
except ImportError:  # not built: no compiler, or another Python's
    fill_kernel = None  # type: ignore[assignment]

VARIABLE = "SEQPLAN_KERNEL"

SOURCE = Path(__file__).with_name("fill_kernel.c")

_EXACT = 2**53
"""Whole numbers below it are exact as floats."""


@dataclass(frozen=True)
class PackedPlacement:
    """A placement on the ``count`` pipelines of a class as the kernel writes it: whole numbers."""

    packed: bytes
    count: int

    def unpack(self) -> ClassPlacement:
        """Return the pipelines' micro-batches."""
        return fill_kernel.unpack(self.packed, self.count)


class KernelFill:
    """Fills classes of pipelines like ``PythonFill``, compiled, with every bit the same."""

    def __init__(self, lengths: Ints, counts: Ints, tables: ModeTables | None = None) -> None:
        self.counts = counts.copy()
        self.left = int(counts.sum())
        self._lengths = lengths
        self._tables = {} if tables is None else tables
        self._filled: list[tuple[PackedPlacement, tuple[float, ...]]] = []

    def fill_class(
        self,
        pipeline_class: PipelineClass,
        reach: int,
        forced_above: int,
        target: float,
        ceiling: float,
        new_first: bool,
    ) -> None:
        """Fill the pipelines of a class; see ``PythonFill.fill_class``."""
        if pipeline_class.modes:
            table = find_table(self._tables, self._lengths, pipeline_class)
            packed, times, self.left = fill_kernel.fill_modes(
                self._lengths,
                self.counts,
                table.padded_lengths,
                table.work_ms,
                table.preference,
                table.cheap_from,
                table.held_from,
                table.coefficients,
                table.capacities,
                pipeline_class.pp,
                pipeline_class.unit,
                pipeline_class.count,
                reach,
                forced_above,
                target,
                ceiling,
                new_first,
            )
            self._filled.append((PackedPlacement(packed, pipeline_class.count), times))
            return
        packed, times, self.left = fill_kernel.fill_class(
            self._lengths,
            self.counts,
            pipeline_class.pp,
            pipeline_class.a,
            pipeline_class.b,
            pipeline_class.c,
            pipeline_class.capacity,
            pipeline_class.unit,
            pipeline_class.count,
            reach,
            forced_above,
            target,
            ceiling,
            new_first,
        )
        self._filled.append((PackedPlacement(packed, pipeline_class.count), times))

    def placements(self) -> list[tuple[PackedPlacement, tuple[float, ...]]]:
        """Return the placement on each class in the order of filling, with forms S."""
        return self._filled


def source_digest(text: str) -> str:
    """Compute the digest of the kernel's source, without the line that states it."""
    lines = [line for line in text.splitlines() if not line.startswith("#define SOURCE ")]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def why_unusable(module: ModuleType | None, source: Path) -> str:
    """Describe why a built kernel cannot be used, next to this source; empty when it can."""
    if module is None:
        return "not built"
    try:
        text = source.read_text("utf-8")
    except OSError:
        return f"{source.name} is not next to it"
    if source_digest(text) != module.SOURCE:
        return f"built from another {source.name}"
    return ""


@cache
def _unusable() -> str:
    return why_unusable(fill_kernel, SOURCE)


def kernel_state() -> str:
    """Describe the fill in use: ``compiled``, or ``Python`` and why.

    Raises ``ValueError`` if the environment sets anything but ``python``.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "python"):
        raise ValueError(f"{VARIABLE} is {wanted!r}; set it to python, or not at all")
    if wanted:
        return f"Python ({VARIABLE}=python)"
    return f"Python (kernel {_unusable()})" if _unusable() else "compiled"


def kernel_fills(classes: Sequence[PipelineClass], longest: int) -> bool:
    """Whether the kernel fills these classes with sequences of up to ``longest`` tokens;
    ``ValueError`` as ``kernel_state``."""
    largest = max(longest, *(pipeline_class.capacity for pipeline_class in classes))
    return kernel_state() == "compiled" and largest < _EXACT
