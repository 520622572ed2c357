"""What proves that a strategy takes at least a time: values of sequences, and prices of pipelines.

A pipeline of class k that ends by T is in some state (``resources``). In each of them the shares
that its sequences take of a resource sum to at most 1, and so do those of a mix of resources. If
for one mix each value is at most the class's price times its share, the pipeline holds at most its
price in value. So no placement ends by T if all values together exceed the prices of all pipelines.

Or there is such a proof for each class on which the longest sequence may run, which assumes that
one of its pipelines runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import cut_values, has_staged_modes
from seqplan.planner.bounds.held_value import HeldValue, Relaxation, list_fixed_mixes
from seqplan.planner.bounds.relaxation import COARSE, FINE, relax
from seqplan.planner.bounds.resources import ROUNDING
from seqplan.planner.placement.fleet import ClassMode, Fleet, Floats, PipelineClass

NEAR = (1.0, 1.002, 1.004, 0.9995, 0.998, 1.01, 1.03, *(1 + k / 2000 for k in range(-9, 30)))
"""Multiples of a time at which the relaxation is solved for values that refute the time."""


@dataclass(frozen=True)
class Witness:
    """Values (n,) of the distinct lengths, and of each class a price and mixes.

    ``mixes`` (states, resources): one for each state, even V = 1 … first, then the peaked ones.
    """

    fleet: Fleet
    batch: Batch
    time_ms: float
    values: Floats
    prices: tuple[float, ...]
    mixes: tuple[Floats, ...]
    levels: tuple[int, ...]

    @property
    def surplus(self) -> float:
        """Return by what share of them all values exceed all prices; 0 without values."""
        offered = sum(k.count * p for k, p in zip(self.fleet.classes, self.prices, strict=True))
        needed = float(self.values @ self.batch.multiplicity)
        return (needed - offered) / needed if needed else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the witness as JSON values; see ``examples/check_bound``."""
        rows = zip(self.fleet.schemes, self.fleet.classes, self.prices, self.mixes, strict=True)
        return {
            "bound_ms": self.time_ms,
            "lengths": self.batch.distinct.tolist(),
            "counts": self.batch.multiplicity.tolist(),
            "values": self.values.tolist(),
            "levels": list(self.levels),
            "classes": [
                {
                    "pipelines": k.count,
                    **describe_class(str(scheme), k),
                    "price": price,
                    "mixes": mixes.tolist(),
                }
                for scheme, k, price, mixes in rows
            ],
        }


def describe_class(scheme: str, k: PipelineClass) -> dict[str, Any]:
    """Return the costs and limits of a class as JSON values."""
    return {
        "scheme": scheme,
        "stages": k.pp,
        "forward": [k.least_forward_fraction, k.forward_fraction],
        "a": k.a,
        "b": k.b,
        "c": k.c,
        "max_tokens": k.capacity,
        "pad_to": k.unit,
        **({"modes": [_describe_mode(mode) for mode in k.modes]} if k.modes else {}),
        **({"runs_longest": True} if k.runs_from else {}),
    }


def _describe_mode(mode: ClassMode) -> dict[str, float]:
    return {"a": mode.a, "b": mode.b, "c": mode.c, "max_tokens": mode.capacity}


def find_witness(
    fleet: Fleet, batch: Batch, time_ms: float
) -> Witness | tuple[Witness, ...] | None:
    """Find what proves that no placement on the fleet ends by a time (ms); None if nothing does.

    The relaxation is solved at some times from that one on. Several witnesses: one for each class
    on which the longest sequence may run (``Fleet.assume_longest``).
    """
    whole = _find_one(fleet, batch, time_ms)
    if whole is not None:
        return whole
    of_cases = []
    for assumed in fleet.assume_longest(batch.longest):
        witness = _find_one(assumed, batch, time_ms)
        if witness is None:
            return None
        of_cases.append(witness)
    return tuple(of_cases) or None


def write_witness(witness: Witness | tuple[Witness, ...]) -> dict[str, Any]:
    """Return what proves a bound as JSON values; see ``examples/check_bound``."""
    if isinstance(witness, Witness):
        return {"proof": "prices", **witness.to_dict()}
    return {
        "proof": "cases",
        "bound_ms": witness[0].time_ms,
        "cases": [of_case.to_dict() for of_case in witness],
    }


def _find_one(fleet: Fleet, batch: Batch, time_ms: float) -> Witness | None:
    details = (COARSE, FINE) if has_staged_modes(fleet) else (COARSE,)
    for detail, near in product(details, NEAR):
        relaxation = relax(fleet.classes, batch, time_ms * near, detail=detail)
        if relaxation is not None:
            witness = _witness(fleet, batch, relaxation, time_ms)
            if witness is not None:
                return witness
    return None


def _witness(fleet: Fleet, batch: Batch, relaxation: Relaxation, time_ms: float) -> Witness | None:
    classes, values, counts = fleet.classes, relaxation.values, batch.multiplicity
    held = [
        HeldValue(pipeline_class, batch, relaxation, k, list_fixed_mixes(relaxation)[:1])
        for k, pipeline_class in enumerate(classes)
    ]
    prices = [value.most(time_ms) for value in held]
    offered = sum(k.count * price for k, price in zip(classes, prices, strict=True))
    needed = float(values @ counts)
    levels = tuple(int(level) for level in relaxation.levels)
    if needed > offered * (1 + ROUNDING):
        mixes = tuple(value.mixes_of_most(time_ms) for value in held)
        return Witness(fleet, batch, time_ms, values, tuple(prices), mixes, levels)
    least = np.full(len(values), np.inf)
    for value, price in zip(held, prices, strict=True):
        if price > 0:
            share = value.least_share(time_ms, price * needed / offered)
            np.minimum(least, price * share, out=least)
    cut, weight = cut_values(values, least, counts, offered)
    mixes = tuple(
        value.mixes_of_least(time_ms, price * needed / offered)
        for value, price in zip(held, prices, strict=True)
    )
    witness = Witness(
        fleet, batch, time_ms, cut, tuple(weight * price for price in prices), mixes, levels
    )
    return witness if witness.surplus > ROUNDING else None
