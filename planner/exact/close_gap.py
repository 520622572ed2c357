"""The flow: a placement with a large gap → exact model → a better placement, or a closer bound."""

from __future__ import annotations

from importlib import import_module

from seqplan.planner.batches.batch import Batch
from seqplan.planner.exact.instance import Instance
from seqplan.planner.exact.model import DETERMINISTIC_LIMIT, LEAST_GAIN, ExactSolution, solve
from seqplan.planner.exact.placement import placement_of
from seqplan.planner.exact.repack import improve_stages
from seqplan.planner.exact.shared_ranks import SharedRanks
from seqplan.planner.placement.exchange import exchange_sequences
from seqplan.planner.placement.fill import Filling, Placement
from seqplan.planner.placement.fleet import Fleet

EXACT_GAP = 0.01
"""The gap above which a step is solved."""


def load_exact_solver() -> None:
    """Import what solving needs: a moment, once, which belongs to no step's planning."""
    import_module("ortools.sat.python.cp_model")


def closer_bound_ms(
    fleet: Fleet,
    batch: Batch,
    time_ms: float,
    bound_ms: float,
    limit: float = DETERMINISTIC_LIMIT,
) -> float:
    """Return the bound, or a higher one of this strategy, never above ``time_ms`` (ms).

    The bound as given where a step is not solved, see ``close_gap``.
    """
    if time_ms <= bound_ms * (1 + EXACT_GAP):
        return bound_ms
    answered = _answer(fleet, batch, time_ms, bound_ms, limit)
    if answered is None:
        return bound_ms
    return min(max(bound_ms, answered[0].bound_ms), time_ms)


def _answer(
    fleet: Fleet, batch: Batch, time_ms: float, bound_ms: float, limit: float
) -> tuple[ExactSolution, Filling | None] | None:
    """Solve a step: the solution, and its placement if it has one; None if it is too large."""
    if not any(pipeline_class.modes for pipeline_class in fleet.classes):
        instance = Instance.from_batch(fleet, batch, time_ms)
        if instance is None:
            return None
        solution = solve(instance, bound_ms, limit)
        return solution, placement_of(instance, solution)
    ranks = SharedRanks.from_modes(fleet)
    instance = None if ranks is None else Instance.from_batch(ranks.fleet, batch, time_ms)
    if ranks is None or instance is None:
        return None
    solution = solve(instance, bound_ms, limit, ranks.paths)
    bins = ranks.place(instance, solution)
    return solution, None if bins is None else ranks.combine(fleet, instance, bins)


def close_gap(
    placement: Placement, batch: Batch, bound_ms: float, limit: float = DETERMINISTIC_LIMIT
) -> tuple[Placement, float]:
    """Return the placement or a faster one of its strategy, and a bound (ms).

    Both are returned as given if the gap is at most ``EXACT_GAP``, or if too many sequences matter.
    The bound is no lower than ``bound_ms``. ``limit``: work (``model.DETERMINISTIC_LIMIT``).
    """
    time_ms = placement.objective_ms
    if time_ms <= bound_ms * (1 + EXACT_GAP):
        return placement, bound_ms
    answered = _answer(placement.fleet, batch, time_ms, bound_ms, limit)
    if answered is None:
        return placement, bound_ms
    solution, filling = answered
    fleet, proven_ms = placement.fleet, max(bound_ms, solution.bound_ms)
    fillings = [] if filling is None else [exchange_sequences(fleet, batch, filling, proven_ms)]
    if fleet.has_stages and time_ms > proven_ms * (1 + 2 * LEAST_GAIN):
        fillings = [
            improve_stages(fleet, batch, some, proven_ms) for some in (placement.filling, *fillings)
        ]
    for some in fillings:
        if some.objective_ms < placement.objective_ms:
            placement = Placement(fleet, some)
    return placement, min(proven_ms, placement.objective_ms)
