"""Target fill: place every sequence so that every pipeline ends by a target, or report failure.

This is the inner loop of the step's search. Each class is filled by a native extension, or, with
the same result, by plain Python (``greedy``). The environment variable ``SEQPLAN_KERNEL=python``
leaves the extension out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import floor, inf, log2
from pathlib import Path
from types import ModuleType

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fill_tables import ClassCosts, FillTables
from seqplan.planner.placement.fleet import ClassPlacement, Fleet, Floats, Ints, PipelineClass
from seqplan.planner.placement.greedy import PythonFill
from seqplan.planner.placement.ramps import ANY_NUMBER
from seqplan.plans.scheme import Strategy

try:
    from seqplan.planner.placement import fill_kernel
except ImportError:  # not built: no compiler, or another Python's
    fill_kernel = None  # type: ignore[assignment]

VARIABLE = "SEQPLAN_KERNEL"

SOURCES = tuple(
    Path(__file__).with_name(name)
    for name in ("fill_kernel.h", "fill_kernel.c", "exchange.c", "sized.c")
)
"""What the extension is built from."""

_EXACT = 2**53
"""Whole numbers below it are exact as floats."""


@dataclass(frozen=True)
class PackedPlacement:
    """A placement on ``count`` pipelines of a class as the extension writes it: whole numbers."""

    packed: bytes
    count: int

    @classmethod
    def pack(cls, placement: AnyPlacement) -> PackedPlacement:
        """Pack the pipelines' micro-batches, unless they are packed already."""
        if isinstance(placement, PackedPlacement):
            return placement
        words: list[int] = []
        for pipeline in placement:
            words.append(len(pipeline))
            for micro in pipeline:
                words.append(len(micro))
                words += [word for entry in micro for word in entry]
        return cls(np.array(words, dtype=np.int64).tobytes(), len(placement))

    def unpack(self) -> ClassPlacement:
        """Return the pipelines' micro-batches."""
        return fill_kernel.unpack(self.packed, self.count)


AnyPlacement = ClassPlacement | PackedPlacement


class NativeFill:
    """Fills classes of pipelines like ``PythonFill``, compiled, with every bit the same."""

    def __init__(self, counts: Ints) -> None:
        self.counts = counts.copy()
        self._left: int | None = None
        self._filled: list[tuple[PackedPlacement, tuple[float, ...]]] = []

    @property
    def left(self) -> int:
        """Return how many sequences are unassigned."""
        if self._left is None:
            self._left = int(self.counts.sum())
        return self._left

    def fill_class(
        self,
        costs: ClassCosts,
        count: int,
        reach: int,
        forced_above: int,
        target: float,
        *,
        most: int = ANY_NUMBER,
    ) -> int:
        """Fill the pipelines of a class; see ``PythonFill.fill_class``."""
        packed, times, self._left, opened = fill_kernel.fill_class(
            costs.compiled,
            self.counts,
            count,
            reach,
            forced_above,
            target,
            most,
        )
        self._filled.append((PackedPlacement(packed, count), times))
        return opened

    def placements(self) -> list[tuple[PackedPlacement, tuple[float, ...]]]:
        """Return the placement on each class in the order of filling, with forms S."""
        return self._filled


Fill = PythonFill | NativeFill


def source_digest(sources: Sequence[Path]) -> str:
    """Compute the digest of the extension's sources, without the line that states it.

    Raises ``OSError``.
    """
    lines = [line for path in sources for line in path.read_text("utf-8").splitlines()]
    lines = [line for line in lines if not line.startswith("#define SOURCE ")]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def why_unusable(module: ModuleType | None, sources: Sequence[Path]) -> str:
    """Describe why a built extension cannot be used, next to these sources; empty when it can."""
    if module is None:
        return "not built"
    try:
        digest = source_digest(sources)
    except OSError as error:
        return f"{Path(error.filename).name} is not next to it"
    return "" if digest == module.SOURCE else "built from other sources"


@cache
def _unusable() -> str:
    return why_unusable(fill_kernel, SOURCES)


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


class FillStarter:
    """Starts fills of ``classes`` from the sequences of a batch.

    ``compiled``: whether the extension fills them, decided when it is made; ``ValueError`` as
    ``kernel_state``.
    """

    def __init__(self, tables: FillTables, classes: Sequence[PipelineClass]) -> None:
        self._tables = tables
        largest = max(int(tables.array[0]), *(k.capacity for k in classes))
        self.compiled = kernel_state() == "compiled" and largest < _EXACT

    def take_unassigned(self, counts: Ints) -> Fill:
        """Take ``counts`` sequences of each length as unassigned."""
        return NativeFill(counts) if self.compiled else PythonFill(self._tables, counts)


@dataclass(frozen=True, eq=False)
class Filling:
    """A placement on each class, as made or packed, and each pipeline's time."""

    placements: tuple[AnyPlacement, ...]
    pipeline_ms: tuple[tuple[float, ...], ...]

    @cached_property
    def bins(self) -> tuple[ClassPlacement, ...]:
        """Return the micro-batches per class and pipeline; a search reads few of its fillings."""
        return tuple(
            placement.unpack() if isinstance(placement, PackedPlacement) else placement
            for placement in self.placements
        )

    @cached_property
    def objective_ms(self) -> float:
        """Return the time of the slowest pipeline."""
        return max(max(times) for times in self.pipeline_ms)


@dataclass(frozen=True)
class Shortfall:
    """A fill that failed, by about how much GPU-time (ms)."""

    gpu_ms: float


@dataclass(frozen=True)
class Placement:
    """A strategy with every sequence of a batch placed on it."""

    fleet: Fleet
    filling: Filling

    @property
    def strategy(self) -> Strategy:
        """Return the strategy that the batch is placed on."""
        return self.fleet.strategy

    @property
    def objective_ms(self) -> float:
        """Return the time of the slowest pipeline."""
        return self.filling.objective_ms


class Filler:
    """Fills one fleet with one batch for any number of targets.

    ``ramped``: micro-batches of pipelines with stages get the sizes of ``ramps``, and times are
    limits that hold in their order; else they are of equal size, and times are estimates of what
    exchanges will reach. ``together``: how many sequences each has with stages, if nearly all of
    the batch are about equally long; 0 chooses it, and None has them as if they were not equal.
    """

    def __init__(
        self, fleet: Fleet, batch: Batch, *, ramped: bool = False, together: int | None = 0
    ) -> None:
        self.fleet = fleet
        tables = FillTables.from_batch(batch)
        self._batch = batch
        self._starter = FillStarter(tables, fleet.classes)
        self._costs = [
            tables.find_costs(k, self._full_ms(k), ramped=ramped, together=together)
            for k in fleet.classes
        ]
        self._works: dict[int, Floats] = {}

    def _full_ms(self, pipeline_class: PipelineClass) -> float:
        """Estimate the work of micro-batches that are as full as stages leave them (ms).

        As if all GPUs ran pipelines of the class; rounded down, so that fleets have it in common.
        """
        if pipeline_class.pp == 1 or not pipeline_class.modes:
            return inf
        work_ms = pipeline_class.work_with_overhead_ms(self._batch.distinct)
        gpus = sum(k.gpus * k.count for k in self.fleet.classes)
        whole_ms = float(work_ms @ self._batch.multiplicity)
        full_ms = pipeline_class.even_work_ms(whole_ms * pipeline_class.gpus / gpus)
        return 2.0 ** (floor(4 * log2(full_ms)) / 4) if 0 < full_ms < inf else inf

    def fill(self, target_ms: float) -> Filling | Shortfall:
        """Place all with every pipeline estimated at ``target_ms`` at most, or return a shortfall.

        1. Classes are ordered from the one that can hold the longest sequence down.
        2. Of each class, pipelines are opened for the sequences that no later class can hold.
        3. Then they, and new ones, are topped up with any: always the longest unassigned sequence
           that fits the rest of the micro-batch (tokens and time), micro-batch after
           micro-batch.

        Complexity: O(placements · log n) and O(n) set-up.
        """
        classes = self.fleet.classes
        fill = self._starter.take_unassigned(self._batch.multiplicity)
        reach = [costs.longest_alone(target_ms) for costs in self._costs]
        order = sorted(range(len(classes)), key=lambda k: (-reach[k], k))
        for k, later in zip(order, [*order[1:], None], strict=True):
            count = classes[k].count
            forced_above = 0 if later is None else reach[later]
            if later is None:
                # Whether the rest cannot fit the last class, however well it is placed.
                missing = self._missing_ms(fill, k) - target_ms * count
                if missing > 0:
                    return Shortfall(missing * classes[k].gpus)
            fill.fill_class(self._costs[k], count, reach[k], forced_above, target_ms)
        if fill.left:
            last = order[-1]
            return Shortfall(self._missing_ms(fill, last) * classes[last].gpus)
        placed = dict(zip(order, fill.placements(), strict=True))
        placements, times = zip(*(placed[k] for k in range(len(classes))), strict=True)
        return Filling(placements, times)

    def _missing_ms(self, fill: Fill, k: int) -> float:
        """Add up the work of all that is unassigned, on pipelines of a class (ms).

        At pp = 1 tokens also cost their share of the micro-batches' overhead.
        """
        if k not in self._works:
            pipeline_class = self.fleet.classes[k]
            one_stage = pipeline_class.pp == 1
            work = pipeline_class.work_with_overhead_ms if one_stage else pipeline_class.work_ms
            self._works[k] = work(self._batch.distinct)
        counts = np.array(fill.counts, dtype=np.float64)
        return float(self._works[k] @ counts) * (1 - 1e-9)
