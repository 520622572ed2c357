"""The last steps of a placement: its sequences exchanged, leveled, and bounded."""

from __future__ import annotations

from operator import attrgetter

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import certify
from seqplan.planner.bounds.gpu_time import cheap_bound_ms
from seqplan.planner.placement.dispatch import dispatch, probe
from seqplan.planner.placement.exchange import ROUGHLY, exchange_sequences, level_pipelines
from seqplan.planner.placement.fill import Filler, Placement
from seqplan.planner.placement.fill_tables import FillTables
from seqplan.planner.placement.fleet import Fleet

EXCHANGE_GAP = 2e-3
"""The gap above which sequences are exchanged."""

CLEARLY = 0.99
"""A placement that takes at most so much of the time of one roughly exchanged is better."""

TOGETHER, NEAR = (None, 1, 2, 3, 4), 1.1
"""Sequences of a micro-batch that are compared if all are about equally long (None: micro-batches
of equal time), and how near to the estimate of the best others have to be."""


def polish(batch: Batch, best: Placement, *, prove: bool) -> tuple[Placement, float]:
    """Exchange sequences of a placement, and level it; return it, and its bound (ms).

    Without stages a close bound is proven first, as polishing ends near it. With stages it is
    farther away than polishing gets, and the time that is then reached helps to prove it. Without
    ``prove`` the bound is the cheap one.
    """
    fleet, filling = best.fleet, best.filling
    if fleet.has_stages:
        polished = polish_stages(batch, best)
        return polished, bound_placement_ms(batch, polished, prove=prove)
    lower_ms = min(cheap_bound_ms(fleet.classes, batch), best.objective_ms)
    if prove:
        lower_ms = certify(fleet, batch, best.objective_ms)
    filling = exchange_sequences(fleet, batch, filling, lower_ms * (1 + EXCHANGE_GAP))
    filling = level_pipelines(fleet, batch, filling)
    return Placement(fleet, filling), min(lower_ms, filling.objective_ms)


def polish_stages(batch: Batch, best: Placement) -> Placement:
    """Exchange sequences of a placement with stages, or of one with the sizes of ramps."""
    even = exchange_roughly(batch, best)
    return choose_sizes(batch, even, place_on_ramps(batch, best.fleet, even.objective_ms))


def place_on_ramps(batch: Batch, fleet: Fleet, below_ms: float) -> Placement | None:
    """Place a batch with the sizes of ramps; None if that does not end before ``below_ms``."""
    return _place(Filler(fleet, batch, ramped=True), batch, below_ms)


def _place(filler: Filler, batch: Batch, below_ms: float) -> Placement | None:
    lower_ms = cheap_bound_ms(filler.fleet.classes, batch)
    known = probe(filler, lower_ms, below_ms)
    filling = None if known is None else dispatch(filler, lower_ms, known=known)
    return None if filling is None else Placement(filler.fleet, filling)


def choose_sizes(
    batch: Batch, even: Placement, ramped: Placement | None, extra_ms: float = 0.0
) -> Placement:
    """Choose the better of two placements, after as many exchanges as may decide it.

    ``even``: with stages roughly exchanged; ``ramped``: with the sizes of ramps, better than that;
    ``extra_ms``: by how much its sync takes longer. With stages the result is leveled.
    """
    if ramped is not None:
        ramped = exchange(batch, ramped)
        if ramped.objective_ms + extra_ms < even.objective_ms * CLEARLY:
            return _level(batch, ramped)
    if even.fleet.has_stages:
        even = exchange(batch, even)
    if ramped is not None and ramped.objective_ms + extra_ms < even.objective_ms:
        even = ramped
    return _level(batch, even) if even.fleet.has_stages else even


def _level(batch: Batch, placement: Placement) -> Placement:
    fleet = placement.fleet
    return Placement(fleet, level_pipelines(fleet, batch, placement.filling))


def exchange(batch: Batch, placement: Placement, effort: float = 1.0) -> Placement:
    """Exchange sequences of a placement until it is near the cheap bound."""
    fleet = placement.fleet
    near_ms = cheap_bound_ms(fleet.classes, batch) * (1 + EXCHANGE_GAP)
    filling = exchange_sequences(fleet, batch, placement.filling, near_ms, effort=effort)
    return Placement(fleet, filling)


def exchange_roughly(batch: Batch, placement: Placement) -> Placement:
    """Exchange sequences of a placement with stages roughly, and of others of equal sequences.

    If nearly all sequences are about equally long, micro-batches of 1, 2, … of them and of equal
    time are compared, which an estimate does not decide.
    """
    fleet = placement.fleet
    best = exchange(batch, placement, effort=ROUGHLY)
    if not FillTables.from_batch(batch).equal_up_to:
        return best
    near_ms, tried = placement.objective_ms * NEAR, [placement.filling.bins]
    for together in TOGETHER:
        other = _place(Filler(fleet, batch, together=together), batch, near_ms)
        if other is not None and other.filling.bins not in tried:
            tried.append(other.filling.bins)
            other = exchange(batch, other, effort=ROUGHLY)
            best = min(best, other, key=attrgetter("objective_ms"))
    return best


def bound_placement_ms(batch: Batch, placement: Placement, *, prove: bool) -> float:
    """Bound a placement's time (ms), by a linear program if ``prove``."""
    reached_ms = placement.objective_ms
    if prove:
        return min(certify(placement.fleet, batch, reached_ms), reached_ms)
    return min(cheap_bound_ms(placement.fleet.classes, batch), reached_ms)
