"""The fitted latency of each scheme over length, with the lengths at which it is worth using."""

from __future__ import annotations

import math

from seqplan.api.report.drawing.markup import element, section, table, text
from seqplan.api.report.drawing.numbers import UNKNOWN, coefficient, whole
from seqplan.api.report.drawing.svg import (
    DASHES,
    Drawing,
    Scale,
    end_labels,
    figure,
    label,
    line,
    path,
    polyline,
    text_width,
)
from seqplan.planner.comparison.results import Comparison
from seqplan.profiler.profile import Profile, ProfileError
from seqplan.profiler.scheme_model import SchemeModel

SHORTEST = 128
"""Where the curves begin (tokens): below, launch overhead is all there is."""

COLUMNS = (
    "Scheme",
    "GPUs",
    "a (ms/token²)",
    "b (ms/token)",
    "c (ms)",
    "UtilLen",
    "MaxLen (tokens)",
)


def curves(comparison: Comparison, profile: Profile) -> str:
    """GPU-time per token over length for the schemes that fit the GPUs; empty when none does."""
    try:
        models = profile.usable(
            comparison.gpus,
            comparison.max_len,
            optimizer_shards=comparison.optimizer_shards,
            include_flagged=comparison.include_flagged,
        )
    except ProfileError as error:
        return section("curves", "What the profile knows", f"No curves: {error}.")
    if not models:
        return section(
            "curves", "What the profile knows", f"No scheme fits {comparison.gpus:,} GPUs."
        )
    return section(
        "curves",
        "What the profile knows",
        "What a token costs under each scheme, by the length of its sequence: the fitted "
        "T(l) = a·l² + b·l + c of one stage, times the GPUs of the stage, over l.",
        figure(
            "cost",
            "GPU-time per token over length",
            "One curve for each scheme, on logarithmic axes, from "
            f"{SHORTEST} tokens to the longest sequence that the scheme holds. The table has the "
            "coefficients.",
            f"Profile {profile.name}. Circle: UtilLen, from where time per token is within 15 % "
            "of its best. Square: MaxLen, the most tokens that a micro-batch can hold; the curve "
            "ends there. Lower is cheaper.",
            lambda width: _chart(models, comparison.max_len, width),
        ),
        table(
            "Schemes that fit",
            COLUMNS,
            [
                [str(model.scheme), whole(model.scheme.gpus)]
                + [coefficient(value) for value in (model.a, model.b, model.c)]
                + [UNKNOWN if model.util_len is None else whole(model.util_len)]
                + [whole(model.max_len)]
                for model in models
            ],
        ),
        element("p", text(f"Source: {profile.source}"), class_="lead"),
        element("p", text(f"Fit: {profile.residuals}"), class_="lead"),
    )


def _cost(model: SchemeModel, length: float) -> float:
    """GPU-ms per token of one sequence alone in its micro-batch."""
    time = length * (model.a * length + model.b) + model.c
    return time * model.scheme.stage_gpus * model.scheme.pp / length


def _chart(models: list[SchemeModel], limit: int, width: float) -> Drawing:
    first = min(SHORTEST, *(model.max_len for model in models))
    last = max(limit, *(model.max_len for model in models))
    height = max(330.0, 14.0 * len(models) + 90)
    top, bottom = 26.0, height - 36
    right = width - max(text_width(str(model.scheme)) for model in models) - 22
    costs = [_cost(m, at) for m in models for at in _lengths(first, m.max_len)]
    y = Scale(min(costs) / 1.3, max(costs) * 1.1, bottom, top, log=True)
    left = max(text_width(f"{tick:g}") for tick in y.ticks(36)) + 8
    x = Scale(first, last, left, right, log=True)
    shapes = [label(0, 12, "GPU-ms per token", class_="soft")]
    for tick in y.ticks(36):
        shapes.append(line(left, y(tick), right, y(tick), "grid"))
        shapes.append(label(left - 6, y(tick) + 4, f"{tick:g}", anchor="end"))
    powers = range(math.ceil(math.log2(first)), math.floor(math.log2(last)) + 1)
    every = max(1, math.ceil(len(powers) * 46 / (right - left)))
    for power in powers[::every]:
        shapes.append(line(x(2**power), top, x(2**power), bottom, "grid"))
        name = f"{2 ** (power - 10)}K" if power >= 10 else f"{2**power}"
        shapes.append(label(x(2**power), bottom + 15, name, anchor="middle"))
    shapes.append(line(left, bottom, right, bottom, "axis"))
    middle = (left + right) / 2
    shapes.append(
        label(middle, height - 4, "sequence length (tokens)", anchor="middle", class_="soft")
    )
    shapes.append(line(x(limit), top, x(limit), bottom, "dashed"))
    shapes.append(label(x(limit) - 4, top - 2, f"longest allowed {limit:,}", anchor="end"))
    ends = []
    for at, model in enumerate(models):
        points = [(x(length), y(_cost(model, length))) for length in _lengths(first, model.max_len)]
        shapes.append(path(polyline(points), f"curve k{at % 4}", DASHES[at % len(DASHES)]))
        ends.append((points[-1][1], points[-1][0], str(model.scheme)))
    for model in models:
        if model.util_len is not None and model.util_len >= first:
            center = x(model.util_len), y(_cost(model, model.util_len))
            shapes.append(_circle(*center))
        x_end, y_end = x(model.max_len), y(_cost(model, model.max_len))
        shapes.append(path(f"M{x_end - 3.5:.1f} {y_end - 3.5:.1f}h7v7h-7z", "solid"))
    return Drawing(height, (*shapes, *end_labels(ends, right, top, bottom)))


def _circle(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" class="hollow"></circle>'


def _lengths(first: int, last: int, count: int = 48) -> list[float]:
    """Lengths spaced evenly by their logarithm."""
    return [first * (last / first) ** (at / (count - 1)) for at in range(count)]
