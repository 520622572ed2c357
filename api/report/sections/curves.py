"""The fitted latency of each scheme over length, with the lengths at which it is worth using."""

from __future__ import annotations

from seqplan.api.report.drawing.charts import Axis, Series, draw_chart, space_lengths
from seqplan.api.report.drawing.markup import lead, section, table
from seqplan.api.report.drawing.numbers import UNKNOWN, coefficient, whole
from seqplan.api.report.drawing.rows import figure
from seqplan.costs.profile import Profile
from seqplan.costs.profiled_scheme import ProfileError
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.comparison.results import Comparison

SHORTEST = 128
"""Where the curves begin (tokens), at most: below, launch overhead is all there is."""

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
            "GPU-time per token over length",
            f"Profile {profile.name}. A curve ends at MaxLen, the most tokens that a micro-batch "
            f"can hold, or at the longest sequence allowed, {comparison.max_len:,} tokens. A point "
            "before: UtilLen, from where time per token is within 15 % of its best. Lower is "
            "cheaper.",
            _chart(models, comparison.max_len),
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
        lead(f"Source: {profile.source}"),
        lead(f"Fit: {profile.residuals}"),
    )


def _cost(model: SchemeModel, length: float) -> float:
    """GPU-ms per token of one sequence alone in its micro-batch."""
    time = length * (model.a * length + model.b) + model.c
    return time * model.scheme.stage_gpus * model.scheme.pp / length


def _chart(models: list[SchemeModel], limit: int) -> str:
    ends = {model.scheme: min(model.max_len, limit) for model in models}
    last = max(ends.values())
    first = max(1, min(SHORTEST, min(ends.values()) // 2))
    utils = [model.util_len for model in models if model.util_len is not None]
    shown = {length for length in utils if first <= length <= last}
    places = sorted({*space_lengths(first, last, 48), *ends.values(), *shown})
    curves = [
        Series(
            str(model.scheme),
            [_cost(model, at) if at <= ends[model.scheme] else None for at in places],
            marks=tuple(
                at
                for at, length in enumerate(places)
                if length == ends[model.scheme]
                or (length == model.util_len and length < ends[model.scheme])
            ),
        )
        for model in models
    ]
    costs = [value for curve in curves for value in curve.values if value is not None]
    return draw_chart(
        f"One curve for each scheme, on logarithmic axes, from {first} tokens to the longest "
        "sequence that the scheme holds or may get. The table has the coefficients.",
        places,
        Axis("sequence length (tokens)", (first, last), "tokens", log=True),
        Axis("GPU-ms per token", (min(costs) / 1.3, max(costs) * 1.1), "rough", log=True),
        curves,
        height=400,
        names_at_ends=True,
    )
