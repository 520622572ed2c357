"""One comparison for each value of a setting: a plan's worth over GPUs, context or tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seqplan.planner.comparison.results import Comparison, System, mean_compute_ms
from seqplan.planner.errors import Infeasible

AXES = ("gpus", "max-len", "tokens")
"""Settings that can be swept."""


@dataclass(frozen=True)
class SweptSystem:
    """A system at one value: means over the steps; ``speedup``: its mean iteration over ours."""

    key: str
    name: str
    mean_ms: float
    compute_ms: float
    tokens_per_s: float
    speedup: float


@dataclass(frozen=True)
class SweptPoint:
    """One value: its systems, ours first, and (name, why) of those left out.

    ``why``: what makes the value impossible for all; there are no systems then.
    """

    value: int
    tokens: int
    systems: tuple[SweptSystem, ...]
    left_out: tuple[tuple[str, str], ...]
    why: str = ""


@dataclass(frozen=True)
class Sweep:
    """The points of an axis (one of ``AXES``), in the requested order."""

    axis: str
    points: tuple[SweptPoint, ...]

    def names(self) -> dict[str, str]:
        """Map each system's key at any point to its name, in order of appearance."""
        return {system.key: system.name for point in self.points for system in point.systems}

    def notes(self) -> list[str]:
        """List the missing systems, with values and reasons, a sentence each."""
        notes = [f"{p.value:,}: not possible: {p.why}" for p in self.points if p.why]
        possible = [point for point in self.points if not point.why]
        missing: dict[tuple[str, str], list[int]] = {}
        for point in possible:
            for entry in point.left_out:
                missing.setdefault(entry, []).append(point.value)
        for (name, why), values in missing.items():
            where = ", ".join(f"{value:,}" for value in values)
            if len(values) == len(possible):
                where = "throughout"
            notes.append(f"{where}: left out: {name}: {why}")
        return notes


def sweep(axis: str, values: Sequence[int], run: Callable[[int], Comparison]) -> Sweep:
    """Collect the comparison that ``run`` makes of each value; an impossible one has a reason.

    Raises ``ValueError`` for an unknown axis.
    """
    if axis not in AXES:
        raise ValueError(f"unknown axis {axis!r}; there are {', '.join(AXES)}")
    points = []
    for value in values:
        try:
            points.append(point_of(value, run(value)))
        except (Infeasible, ValueError) as error:
            points.append(SweptPoint(value, 0, (), (), str(error)))
    return Sweep(axis, tuple(points))


def point_of(value: int, comparison: Comparison) -> SweptPoint:
    """Keep the part of a comparison that a sweep shows: the means."""
    ours = comparison.ours

    def swept(system: System) -> SweptSystem:
        return SweptSystem(
            key=system.key,
            name=system.name,
            mean_ms=system.mean_ms,
            compute_ms=mean_compute_ms(system),
            tokens_per_s=system.tokens_per_s,
            speedup=system.mean_ms / ours.mean_ms,
        )

    systems = tuple(swept(system) for system in comparison.systems)
    return SweptPoint(value, comparison.tokens, systems, comparison.left_out)
