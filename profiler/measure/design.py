"""Which micro-batches to measure: lengths to fit, lengths held out, packed micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqplan.costs.fit.samples import Role

FIT_POINTS, PACKED_FIT_POINTS, PACKED_POINTS = 10, 5, 6


@dataclass(frozen=True, slots=True)
class DesignPoint:
    """A micro-batch of sequences of ``lengths`` tokens, and the use of its time."""

    role: Role
    lengths: tuple[int, ...]


def design(
    shortest: int, longest: int, *, points: int = FIT_POINTS, seed: int = 0
) -> list[DesignPoint]:
    """Choose micro-batches from ``shortest`` to ``longest`` tokens.

    Lengths to fit are a geometric series, and those held out lie between them. Packed micro-batches
    have several sequences of any such lengths, ``longest`` tokens at most together. A few of these
    are fitted, too, as plans have such: kernels are not quite quadratic, and single sequences
    alone would put all of that into the packed ones. The others evaluate the fit. The same
    arguments give the same design. Ordered from cheap to expensive, so that an interrupted run has
    whole curves.
    ``ValueError`` for a range that holds no series.
    """
    if not 1 <= shortest < longest:
        raise ValueError(f"lengths must rise: {shortest}..{longest}. Write the shorter one first")
    if points < 4:
        raise ValueError(f"three coefficients need at least 4 lengths, not {points}")
    series = np.unique(np.geomspace(shortest, longest, points).round().astype(int))
    between = np.sqrt(series[:-1] * series[1:]).round().astype(int)
    fitted = [DesignPoint("fit", (int(length),)) for length in series]
    chosen = set(series.tolist())
    held = [
        DesignPoint("held-out", (int(length),))
        for length in np.unique(between)
        if int(length) not in chosen
    ]
    packed = [
        *_draw_mixtures("packed", PACKED_POINTS, shortest, longest, np.random.default_rng(seed)),
        *_draw_mixtures(
            "fit", PACKED_FIT_POINTS, shortest, longest, np.random.default_rng((seed, 1))
        ),
    ]
    return sorted([*fitted, *held, *packed], key=lambda point: sum(point.lengths))


def _draw_mixtures(
    role: Role, count: int, shortest: int, longest: int, rng: np.random.Generator
) -> list[DesignPoint]:
    """Draw long-tailed mixtures that fill a growing part of the longest micro-batch."""
    points = []
    for part in np.linspace(0.25, 1.0, count):
        room = int(longest * part)
        lengths: list[int] = []
        while room >= shortest and len(lengths) < 64:
            drawn = int(np.exp(rng.uniform(np.log(shortest), np.log(max(room, shortest)))))
            lengths.append(max(shortest, min(drawn, room)))
            room -= lengths[-1]
        if len(lengths) > 1:
            points.append(DesignPoint(role, tuple(lengths)))
    return points
