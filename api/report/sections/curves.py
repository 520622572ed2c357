"""The fitted latency of each scheme over length, with the lengths at which it is worth using."""

from __future__ import annotations

import math

from seqplan.api.report.drawing import svg
from seqplan.api.report.drawing.markup import element, section, table, text
from seqplan.api.report.drawing.numbers import UNKNOWN, coefficient, whole
from seqplan.costs.profile import Profile
from seqplan.costs.profiled_scheme import ProfileError
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.comparison.results import Comparison

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
        svg.figure(
            "cost",
            "GPU-time per token over length",
            "One curve for each scheme, on logarithmic axes, from "
            f"{SHORTEST} tokens to the longest sequence that the scheme holds. The table has the "
            "coefficients.",
            f"Profile {profile.name}. Circle: UtilLen, from where time per token is within 15 % "
            "of its best. Filled mark: MaxLen, the most tokens that a micro-batch can hold; the "
            "curve ends there. Lower is cheaper.",
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


def _chart(models: list[SchemeModel], limit: int, width: float) -> svg.Drawing:
    first = min(SHORTEST, *(model.max_len for model in models))
    last = max(limit, *(model.max_len for model in models))
    names = [str(model.scheme) for model in models]
    shapes, used = svg.line_legend(names, width, 0)
    top = used + 26.0
    bottom = top + 300.0
    height, right = bottom + 36, width - max(map(svg.text_width, names)) - 12
    costs = [_cost(m, at) for m in models for at in _lengths(first, m.max_len)]
    y = svg.Scale(min(costs) / 1.3, max(costs) * 1.1, bottom, top, log=True)
    axis, left = svg.value_axis(y, right, "{:g}".format, 36)
    x = svg.Scale(first, last, left, right, log=True)
    shapes += [svg.label(0, used + 12, "GPU-ms per token", class_="soft"), *axis]
    powers = range(math.ceil(math.log2(first)), math.floor(math.log2(last)) + 1)
    every = max(1, math.ceil(len(powers) * 46 / (right - left)))
    for power in powers[::every]:
        shapes.append(svg.line(x(2**power), top, x(2**power), bottom, "grid"))
        name = f"{2 ** (power - 10)}K" if power >= 10 else f"{2**power}"
        shapes.append(svg.label(x(2**power), bottom + 15, name, anchor="middle"))
    shapes.append(svg.line(left, bottom, right, bottom, "axis"))
    middle = (left + right) / 2
    shapes.append(
        svg.label(middle, height - 4, "sequence length (tokens)", anchor="middle", class_="soft")
    )
    shapes.append(svg.line(x(limit), top, x(limit), bottom, "dashed"))
    shapes.append(svg.label(x(limit) - 4, top - 2, f"longest allowed {limit:,}", anchor="end"))
    ends = []
    for at, model in enumerate(models):
        points = [(x(length), y(_cost(model, length))) for length in _lengths(first, model.max_len)]
        shapes.append(svg.curve(points, at))
        ends.append(points[-1])
    for model in models:
        if model.util_len is not None and model.util_len >= first:
            center = x(model.util_len), y(_cost(model, model.util_len))
            shapes.append(svg.circle(*center, 4.5, "hollow"))
    shapes += [svg.mark(*end, at) for at, end in enumerate(ends)]
    return svg.Drawing(height, (*shapes, *_names_at(ends, names)))


def _names_at(ends: list[tuple[float, float]], names: list[str]) -> list[str]:
    """Place names next to the ends of their curves, clear of other ends."""
    shapes = []
    for at, ((x, y), name) in enumerate(zip(ends, names, strict=True)):
        reach = x + 16 + svg.text_width(name)
        others = ends[:at] + ends[at + 1 :]
        if not any(abs(y - other) < 13 and x - 16 < begin < reach for begin, other in others):
            shapes.append(svg.label(x + 9, y + 4, name))
    return shapes


def _lengths(first: int, last: int, count: int = 48) -> list[float]:
    """Lengths spaced evenly by their logarithm."""
    return [first * (last / first) ** (at / (count - 1)) for at in range(count)]
