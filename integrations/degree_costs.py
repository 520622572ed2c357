"""Costs of a micro-batch on groups of each degree that a trainer forms."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache

import numpy as np

from seqplan.costs.fit.correction import DegreeOverhead, DegreeTimes, find_overhead
from seqplan.costs.fit.refit import LEAST_TO_SCALE
from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import find_profile
from seqplan.planner.balance.cost import Cost
from seqplan.plans.scheme import Scheme

Costs = Cost | Mapping[int, Cost] | Callable[[], Mapping[int, Cost]]
"""Of a micro-batch on one rank, by degree, or a function that returns them when planning."""

HIDDEN = 0.5
"""Share of attention's work below which the largest degree's transfers hide it."""

_log = logging.getLogger("seqplan.integrations")

PROFILE, SCHEME, COST = "SEQPLAN_PROFILE", "SEQPLAN_SCHEME", "SEQPLAN_COST"
"""Environment: a profile with a scheme of it, or a cost as ``a,b,c``."""


def ring_costs(
    profile: Profile | str, scheme: Scheme | str, expert_parallel: int | None = None
) -> dict[int, Cost]:
    """Take the costs of a profile by ring degree, all else as in ``scheme`` (``tp4``).

    ``expert_parallel``: the trainer's degree, of which the profile must have entries; by default
    the profile's smallest. ``ValueError`` as ``Cost.from_profile``.
    """
    known = find_profile(profile) if isinstance(profile, str) else profile
    known = known.at_expert_parallel(expert_parallel or known.expert_degrees[0])
    wanted = Scheme.parse(scheme) if isinstance(scheme, str) else scheme
    costs = {1: Cost.from_profile(known, wanted)}
    for entry in known.schemes:
        shape = (entry.scheme.tp, entry.scheme.pp, entry.scheme.ulysses)
        if shape == (wanted.tp, 1, wanted.ulysses) and entry.scheme.ring > 1:
            costs[entry.scheme.ring] = Cost.from_profile(known, entry.scheme)
    return costs


def by_degree(
    known: Costs, ranks: int, smallest: int = 1, formed: Collection[int] | None = None
) -> dict[int, Cost]:
    """Give every degree of ``ranks`` a cost: powers of two that divide them, and all of them.

    ``formed``: other degrees than these, which a trainer has formed groups of.
    One that is not known is derived, and logged as such once. Between two known degrees a rank's
    work times the degree, and c, change evenly. Beyond the largest the transfers of a ring take as
    long for a token as up to it; if they hide attention there, it counts as not hidden. With one
    known degree, 1, work is divided evenly and nothing is lost by communication. ``ValueError`` if
    degree 1 is not known.
    """
    if callable(known):
        known = known()
    costs = {1: known} if isinstance(known, Cost) else dict(known)
    if 1 not in costs:
        raise ValueError(f"costs of degrees {sorted(costs)}: that of one rank is missing")
    powers = {ranks, *(2**i for i in range(ranks.bit_length()) if ranks % 2**i == 0)}
    degrees = powers if formed is None else formed
    wanted = sorted(degree for degree in degrees if degree >= smallest)
    if derived := tuple(degree for degree in wanted if degree not in costs):
        _log_derived(derived, tuple(sorted(costs)))
    return {degree: costs.get(degree) or _derive_cost(costs, degree) for degree in wanted}


@cache
def _log_derived(degrees: tuple[int, ...], known: tuple[int, ...]) -> None:
    _log.info(
        "costs of a micro-batch on groups of %s are derived from those of %s",
        *(", ".join(map(str, numbers)) for numbers in (degrees, known)),
    )


def _derive_cost(costs: Mapping[int, Cost], degree: int) -> Cost:
    """Interpolate the cost of a degree, or extrapolate that of the largest known one."""
    first, last = costs[1], max(costs)
    below = max(d for d in costs if d < degree)
    if degree < last:
        above = min(d for d in costs if d > degree)
        part = (degree - below) / (above - below)
        (a, b, c), (more_a, more_b, more_c) = (
            (d * costs[d].a, d * costs[d].b, costs[d].c) for d in (below, above)
        )
        a, b = a + part * (more_a - a), b + part * (more_b - b)
        return Cost(a / degree, b / degree, c + part * (more_c - c))
    largest = costs[last]
    # Of a ring of d ranks each token's keys and values pass d − 1 times.
    transfers = max(last * largest.b - first.b, 0.0) / max(last - 1, 1)
    attention = last * largest.a
    if attention < HIDDEN * first.a:
        attention = first.a
    b = first.b + transfers * (degree - 1) if last > 1 else first.b
    return Cost(attention / degree, b / degree, largest.c)


def calibrate_by_degree(
    costs: Mapping[int, Cost],
    measured: Mapping[int, Sequence[tuple[Sequence[Sequence[int]], float]]],
) -> tuple[dict[int, Cost], str]:
    """Correct the costs of all degrees by a trainer's times of some, and describe how.

    ``costs``: by degree, as of ``by_degree``; ``measured``: by degree, for steps of one group the
    lengths (tokens) of its micro-batches and the milliseconds that it computed. Learns what each
    micro-batch costs more by each further rank, from two degrees with 8 steps or more each, if that
    predicts held-out steps better than factors; else one factor, or none. ``ValueError`` for a
    degree without cost, or a time that is not above 0.
    """
    samples = {}
    for degree, steps in measured.items():
        if degree not in costs:
            raise ValueError(f"measured degree {degree}: has no cost. Give one of {sorted(costs)}")
        cost, counted = costs[degree], [step for step in steps if step[0]]
        times = np.array([float(ms) for _, ms in counted])
        if bad := [ms for ms in times if not 0 < ms < float("inf")]:
            raise ValueError(f"measured {bad[0]} ms: must be times above 0")
        predicted = [sum(cost.micro_batch_ms(micro) for micro in micros) for micros, _ in counted]
        counts = np.array([float(len(micros)) for micros, _ in counted])
        ring = Scheme(ring=degree)
        squares = [sum(n**2 for micro in micros for n in micro) for micros, _ in counted]
        attention = cost.a * np.array(squares, dtype=float)
        samples[ring] = DegreeTimes(
            ring, np.array(predicted, dtype=float), attention, counts, times
        )
    overhead = find_overhead(samples, LEAST_TO_SCALE)
    if overhead is None:
        ratios = [ratio for of in samples.values() for ratio in of.measured / of.predicted]
        if len(ratios) < LEAST_TO_SCALE:
            return dict(costs), f"kept: {len(ratios)} steps measured, {LEAST_TO_SCALE} are needed"
        overhead = DegreeOverhead(float(np.median(ratios)), 0.0, 0.0)
    corrected = {}
    for degree, cost in costs.items():
        latency = overhead.correct(cost, Scheme(ring=degree))
        corrected[degree] = Cost(latency.a, latency.b, latency.c)
    return corrected, f"fitted: {overhead}"


def add_padding(costs: Mapping[int, Cost], alignment: int) -> dict[int, Cost]:
    """Add the cost of padding a micro-batch, half of ``alignment`` tokens a rank.

    Padding is a separate sequence: its tokens cost ``b`` each, and little else.
    """
    return {
        degree: Cost(cost.a, cost.b, cost.c + cost.b * degree * (alignment - 1) / 2)
        for degree, cost in costs.items()
    }


def costs_of_environment(expert_parallel: int | None = None) -> dict[int, Cost]:
    """Read costs from the environment: ``SEQPLAN_PROFILE`` and ``SEQPLAN_SCHEME``, or
    ``SEQPLAN_COST``.

    ``expert_parallel``: as in ``ring_costs``. ``ValueError`` if neither is set, or one is invalid.
    """
    profile, scheme = os.environ.get(PROFILE), os.environ.get(SCHEME)
    if text := os.environ.get(COST):
        if profile or scheme:
            raise ValueError(f"{COST} is set next to {PROFILE} or {SCHEME}. Unset one of them")
        try:
            a, b, c = (float(part) for part in text.split(","))
            return {1: Cost(a, b, c)}
        except ValueError as error:
            raise ValueError(f"{COST}={text!r}: must be a,b,c in ms ({error})") from None
    if not profile or not scheme:
        raise ValueError(
            f"no costs: set {PROFILE} and {SCHEME} (a profile and what a rank runs, as tp4), or "
            f"{COST} (a,b,c)"
        )
    return ring_costs(profile, scheme, expert_parallel)
