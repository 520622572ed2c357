"""The micro-batch of a rank: its modes, how much it holds, and lengths that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from seqplan.costs.latency import Latency
from seqplan.planner.balance.mode import Mode
from seqplan.planner.batches.batch import whole_lengths
from seqplan.planner.placement.fleet import PipelineClass


def check_modes(
    capacity: int | None, cost: Latency | None, modes: Sequence[Mode] | None
) -> tuple[Mode, ...]:
    """Return the modes, one if ``capacity`` and ``cost`` state it; by ascending capacity."""
    if modes is None:
        if capacity is None and cost is None:
            raise TypeError(
                "capacity and cost are missing. Give both, such as capacity=16_384, "
                "cost=Cost.from_model(…), or modes"
            )
        if capacity is None:
            raise TypeError("capacity is missing. Give the tokens that a micro-batch can hold")
        return (Mode("", capacity, cast(Latency, cost)),)
    if capacity is not None or cost is not None:
        raise TypeError("capacity and cost are stated by each mode. Leave both out with modes")
    if not modes or not all(isinstance(mode, Mode) for mode in modes):
        raise TypeError(f"modes: {modes!r:.60}. Give a list of Mode(name, capacity, cost)")
    names = [mode.name for mode in modes]
    if len(set(names)) < len(names):
        raise ValueError(f"modes: {', '.join(names)}. Name each once")
    return tuple(sorted(modes, key=lambda mode: mode.capacity))


def host_micro_batch(mode: Mode, pad_to: int) -> PipelineClass:
    """Describe a micro-batch of a rank in a mode; ``ValueError`` if it holds nothing."""
    cost, capacity = mode.cost, mode.capacity
    if capacity < pad_to:
        raise ValueError(
            f"capacity {capacity} holds nothing padded to multiples of {pad_to}"
            ". Raise the capacity or lower the multiple"
        )
    return PipelineClass(
        pp=1,
        a=cost.a,
        b=cost.b,
        c=cost.c,
        capacity=capacity - capacity % pad_to,
        unit=pad_to,
        count=1,
        gpus=1,
    )


def hold_at_most(micro_batch: PipelineClass, tokens: int) -> PipelineClass:
    """Return a micro-batch that holds no more than so many tokens."""
    most = tokens - tokens % micro_batch.unit
    return replace(micro_batch, capacity=min(micro_batch.capacity, most))


def check_lengths(lengths: object, micro_batch: PipelineClass, pad_to: int) -> list[int]:
    """Return lengths as whole numbers.

    ``TypeError`` and ``ValueError`` as ``whole_lengths``, and ``ValueError`` for the first that
    exceeds a micro-batch.
    """
    whole = whole_lengths(lengths)
    padded = micro_batch.padded(whole)
    if padded.max() > micro_batch.capacity:
        place = int(np.argmax(padded > micro_batch.capacity))
        padding = f", padded to multiples of {pad_to}" if pad_to > 1 else ""
        raise ValueError(
            f"sequence {place} has {whole[place]} tokens{padding}; a micro-batch holds "
            f"{micro_batch.capacity}: truncate it or give more capacity"
        )
    numbers: list[int] = whole.tolist()
    return numbers
