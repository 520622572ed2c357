"""A measured profile as a page: curves, samples and residuals of every scheme."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from seqplan.api.report.drawing.charts import Axis, Look, Series, draw_chart, space_lengths
from seqplan.api.report.drawing.markup import lead, listing, section, table
from seqplan.api.report.drawing.numbers import UNKNOWN, coefficient, milliseconds, percent, whole
from seqplan.api.report.drawing.rows import figure
from seqplan.api.report.page import document
from seqplan.costs.fit.latency_fit import Errors, Fit
from seqplan.costs.fit.samples import Sample
from seqplan.plans.scheme import Scheme
from seqplan.plans.version import VERSION

ROLES: dict[str, tuple[Look, str]] = {
    "fit": ("hollow", "fitted"),
    "held-out": ("filled", "held out"),
    "packed": ("large", "packed"),
}
"""How points of the kinds of samples look, and what the kinds are."""

CURVE_POINTS = 60


@dataclass(frozen=True)
class _Point:
    """A sample as it is drawn: tokens, milliseconds measured and predicted."""

    sample: Sample
    tokens: int
    measured: float
    predicted: float

    @property
    def residual(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1


def render_fits(
    name: str, source: str, layers: int, samples: Sequence[Sample], fits: Mapping[Scheme, Fit]
) -> str:
    """A self-contained HTML page; ``layers`` of the whole model. Same input, same text."""
    sections = [
        _scheme_section(scheme, fit, _points(scheme, fit, layers, samples))
        for scheme, fit in fits.items()
    ]
    return document(name, lead(source), sections, f"seqplan {VERSION}")


def _points(scheme: Scheme, fit: Fit, layers: int, samples: Sequence[Sample]) -> list[_Point]:
    return [
        _Point(
            sample,
            sample.tokens,
            sample.whole_ms(layers),
            fit.latency.micro_batch_ms(sample.lengths),
        )
        for sample in samples
        if sample.scheme == scheme and not sample.oom
    ]


def _scheme_section(scheme: Scheme, fit: Fit, points: list[_Point]) -> str:
    util = fit.latency.util_len()
    sentence = (
        f"T(l) = {fit.latency.a:.4g}·l² + {fit.latency.b:.4g}·l + {fit.latency.c:.4g} ms; "
        f"UtilLen {UNKNOWN if util is None else whole(util)}. Verdict: {fit.verdict}."
    )
    ident = str(scheme).replace(".", "-")
    return section(
        ident,
        f"Scheme {scheme}",
        sentence,
        listing((*fit.reasons, *fit.notes)) if fit.reasons or fit.notes else "",
        figure(
            "Time of a micro-batch of one sequence",
            "Hollow points were fitted, filled ones held out. Packed micro-batches are in the next "
            "figure.",
            _curve(fit, points),
        ),
        figure(
            "Predicted over measured, less one",
            "Hollow points were fitted, filled ones held out; large hollow points are packed "
            "micro-batches.",
            _residuals(points),
        ),
        table(
            "Coefficients",
            ("Coefficient", "Value", "95 % interval from", "to"),
            [
                [name, coefficient(getattr(fit.latency, name))]
                + [coefficient(edge) for edge in fit.intervals[name]]
                for name in "abc"
            ],
        ),
        table(
            "Errors",
            ("Samples", "Number", "Median", "p90", "Largest"),
            [
                [kind, *_errors(errors)]
                for kind, errors in (
                    ("fitted", fit.in_sample),
                    ("held out", fit.held_out),
                    ("packed", fit.packed),
                )
            ],
        ),
        table(
            "Samples measured",
            ("Kind", "Sequences", "Tokens", "Measured", "Predicted", "Residual", "Spread"),
            [
                [
                    ROLES[point.sample.role][1],
                    whole(len(point.sample.lengths)),
                    whole(point.tokens),
                    milliseconds(point.measured),
                    milliseconds(point.predicted),
                    percent(point.residual),
                    percent(point.sample.spread),
                ]
                for point in points
            ],
        ),
    )


def _errors(errors: Errors) -> list[str]:
    return [
        whole(errors.samples),
        percent(errors.median),
        percent(errors.p90),
        percent(errors.largest),
    ]


def _curve(fit: Fit, points: Sequence[_Point]) -> str:
    single = [point for point in points if len(point.sample.lengths) == 1]
    times = [point.measured for point in single]
    across = _tokens_axis(single)
    first, last = across.limits
    lengths = space_lengths(first, last, CURVE_POINTS)
    places = sorted([*lengths, *(point.tokens for point in single)])
    fitted = [fit.latency.micro_batch_ms([length]) for length in places]
    return draw_chart(
        "The fitted curve with the samples, on logarithmic axes. The table has the numbers.",
        places,
        across,
        Axis("ms", (min(times) / 1.5, max(times) * 1.5), "rough", log=True),
        [
            Series("T(l)", fitted),
            *_samples(single, places, [point.measured for point in single]),
        ],
    )


def _residuals(points: Sequence[_Point]) -> str:
    residuals = [point.residual for point in points]
    farthest = max(0.05, *map(abs, residuals)) * 1.1
    places = sorted(point.tokens for point in points)
    return draw_chart(
        "The relative residual of every sample over its tokens. The table has the numbers.",
        places,
        _tokens_axis(points),
        Axis("residual", (-farthest, farthest), "percent"),
        [
            Series("as measured", [0.0] * len(places), "dashed"),
            *_samples(points, places, residuals),
        ],
        height=240,
    )


def _samples(
    points: Sequence[_Point], places: Sequence[float], values: Sequence[float]
) -> Iterator[Series]:
    """Yield the points of each role; samples of as many tokens have places next to each other."""
    for role, (look, name) in ROLES.items():
        column: list[float | None] = [None] * len(places)
        seen: Counter[int] = Counter()
        for point, value in zip(points, values, strict=True):
            at = bisect_left(places, point.tokens) + seen[point.tokens]
            seen[point.tokens] += 1
            if point.sample.role == role:
                column[at] = value
        if any(value is not None for value in column):
            yield Series(name, column, look)


def _tokens_axis(points: Sequence[_Point]) -> Axis:
    tokens = [point.tokens for point in points]
    return Axis("tokens", (min(tokens) * 0.9, max(tokens) * 1.1), "tokens", log=True)
