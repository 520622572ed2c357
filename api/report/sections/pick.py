"""Which system and which steps the detailed figures are about."""

from __future__ import annotations

from seqplan.planner.comparison.advice import rivals
from seqplan.planner.comparison.results import Comparison, System
from seqplan.planner.simulation.iteration import Iteration


def shown_rival(comparison: Comparison) -> tuple[str, System] | None:
    """Return the system that figures compare with ours, after its description.

    The nearest rival; another only if all need our planner.
    """
    return next(iter(rivals(comparison.systems)), None)


def slowest(system: System) -> int:
    """Index of the system's slowest iteration."""
    times = [iteration.total_ms for iteration in system.iterations]
    return times.index(max(times))


def fastest(system: System) -> int:
    """Index of the system's fastest iteration."""
    times = [iteration.total_ms for iteration in system.iterations]
    return times.index(min(times))


def describe_simulation(comparison: Comparison) -> str:
    """Return the statement of origin of every figure."""
    return f"Simulated on profile {comparison.profile}."


def strategy_counts(iterations: tuple[Iteration, ...]) -> list[tuple[str, list[int]]]:
    """Strategies with the indexes of their iterations, most frequent first."""
    places: dict[str, list[int]] = {}
    for at, iteration in enumerate(iterations):
        places.setdefault(iteration.strategy, []).append(at)
    return sorted(places.items(), key=lambda entry: (-len(entry[1]), entry[1][0]))
