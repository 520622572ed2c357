"""The 1F1B order of a pipeline stage's forward and backward passes."""

from __future__ import annotations

from typing import Literal

Pass = tuple[Literal["F", "B"], int]


def stage_order(pp: int, stage: int, micro_batches: int) -> list[Pass]:
    """List what stage ``stage`` of ``pp`` runs, in order: (``"F"`` or ``"B"``, micro-batch index).

    Warm-up of ``min(pp − 1 − stage, micro_batches)`` forward passes, then one forward and one
    backward in turn, then the remaining backward passes (PipeDream-flush, as in Megatron-LM).
    Both kinds run in micro-batch order, so a stage keeps at most ``pp − stage`` micro-batches.
    ``ValueError`` for a stage outside 0 … pp − 1 or a negative number of micro-batches.
    """
    if not 0 <= stage < pp:
        raise ValueError(f"stage must be in 0 … {pp - 1}, not {stage}")
    if micro_batches < 0:
        raise ValueError(f"micro_batches must not be negative, not {micro_batches}")
    warm_up = min(pp - 1 - stage, micro_batches)
    order: list[Pass] = [("F", index) for index in range(warm_up)]
    for index in range(micro_batches - warm_up):
        order += [("F", warm_up + index), ("B", index)]
    order += [("B", index) for index in range(micro_batches - warm_up, micro_batches)]
    return order
