"""The last steps of a placement: balanced, leveled, its sequences exchanged, and bounded."""

from __future__ import annotations

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import certify
from seqplan.planner.bounds.gpu_time import area_bound_ms, cheap_bound_ms
from seqplan.planner.placement.dispatch import balance, level
from seqplan.planner.placement.exchange import exchange_sequences
from seqplan.planner.placement.fill import Filler, Placement

BALANCE_GAP = 2e-3
"""The gap above which sequences are moved and swapped between pipelines."""


def polish(batch: Batch, best: Placement, *, prove: bool) -> tuple[Placement, float]:
    """Balance, level and exchange sequences of a placement; return it, and its bound (ms).

    Without stages a close bound is proven first, as polishing ends near it. With stages it is
    farther away than polishing gets, and the time that is then reached helps to prove it. Without
    ``prove`` sequences are leveled, with stages also exchanged, and the bound is the cheap one.
    """
    fleet, filling = best.fleet, best.filling
    staged = any(of_class.pp > 1 for of_class in fleet.classes)
    bound_ms = min(cheap_bound_ms(fleet.classes, batch), best.objective_ms)
    if prove and not staged:
        bound_ms = certify(fleet, batch, best.objective_ms)
    near_ms = bound_ms * (1 + BALANCE_GAP)
    if prove and filling.objective_ms > near_ms:
        filling = balance(fleet, batch, filling, bound_ms)
    filling = level(Filler(fleet, batch), filling, area_bound_ms(fleet.classes, batch))
    if prove or staged:
        filling = exchange_sequences(fleet, batch, filling, near_ms)
    if prove and staged:
        bound_ms = certify(fleet, batch, filling.objective_ms)
    return Placement(fleet, filling), min(bound_ms, filling.objective_ms)
