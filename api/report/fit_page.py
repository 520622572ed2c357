"""A measured profile as a page: curves, samples and residuals of every scheme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seqplan.api.report.drawing import svg
from seqplan.api.report.drawing.markup import element, listing, section, table, text
from seqplan.api.report.drawing.numbers import UNKNOWN, coefficient, milliseconds, percent, whole
from seqplan.api.report.page import document
from seqplan.costs.fit.latency_fit import Errors, Fit
from seqplan.costs.fit.samples import Sample
from seqplan.plans.scheme import Scheme
from seqplan.plans.version import VERSION

ROLES = {
    "fit": ("circle", "fitted"),
    "held-out": ("square", "held out"),
    "packed": ("diamond", "packed"),
}
"""Shapes distinguish the kinds of samples without color."""

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
    body = "\n".join(
        (
            element("header", element("h1", text(name)), element("p", text(source), class_="lead")),
            element("main", "\n".join(sections)),
            element("footer", element("p", text(f"seqplan {VERSION}"), class_="lead")),
        )
    )
    return document(name, body)


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
        svg.figure(
            f"{ident}-curve",
            "Time of a micro-batch of one sequence",
            "The fitted curve with the samples, on logarithmic axes. The table has the numbers.",
            "Circles were fitted, squares held out. Packed micro-batches are in the next figure.",
            lambda width: _curve(fit, points, width),
        ),
        svg.figure(
            f"{ident}-residuals",
            "Predicted over measured, less one",
            "The relative residual of every sample over its tokens. The table has the numbers.",
            "Circles were fitted, squares held out, diamonds are packed micro-batches.",
            lambda width: _residuals(points, width),
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


def _curve(fit: Fit, points: list[_Point], width: float) -> svg.Drawing:
    single = [point for point in points if len(point.sample.lengths) == 1]
    times = [point.measured for point in single]
    y_scale = min(times) / 1.5, max(times) * 1.5
    height, top, bottom = 320.0, 26.0, 284.0
    y = svg.Scale(*y_scale, bottom, top, log=True)
    shapes, left = svg.value_axis(y, width - 8, "{:,g}".format, 36)
    x = _tokens_scale(single, left, width)
    shapes += [svg.label(0, 12, "ms", class_="soft"), *_token_axis(x, y, left, width, height)]
    first, last = single[0].tokens, single[-1].tokens
    lengths = [first * (last / first) ** (at / (CURVE_POINTS - 1)) for at in range(CURVE_POINTS)]
    latency = fit.latency
    curve = [(x(length), y(latency.micro_batch_ms([length]))) for length in lengths]
    shapes.append(svg.path(svg.polyline(curve), "curve k0"))
    shapes += [_mark(point, x(point.tokens), y(point.measured)) for point in single]
    return svg.Drawing(height, tuple(shapes))


def _residuals(points: list[_Point], width: float) -> svg.Drawing:
    farthest = max(0.05, *(abs(point.residual) for point in points)) * 1.1
    height, top, bottom = 240.0, 26.0, 204.0
    y = svg.Scale(-farthest, farthest, bottom, top)
    shapes, left = svg.value_axis(y, width - 8, lambda tick: percent(tick, 0), 30)
    x = _tokens_scale(points, left, width)
    shapes += _token_axis(x, y, left, width, height)
    shapes.append(svg.line(left, y(0.0), width - 8, y(0.0), "axis"))
    shapes += [_mark(point, x(point.tokens), y(point.residual)) for point in points]
    return svg.Drawing(height, tuple(shapes))


def _tokens_scale(points: list[_Point], left: float, width: float) -> svg.Scale:
    tokens = [point.tokens for point in points]
    return svg.Scale(min(tokens) * 0.9, max(tokens) * 1.1, left, width - 8, log=True)


def _token_axis(x: svg.Scale, y: svg.Scale, left: float, width: float, height: float) -> list[str]:
    shapes = []
    bottom = max(y.start, y.end)
    for power in range(0, 32, 1 if width > 500 else 2):
        if x.low <= 2**power <= x.high:
            shapes.append(svg.line(x(2**power), min(y.start, y.end), x(2**power), bottom, "grid"))
            shapes.append(svg.label(x(2**power), bottom + 15, f"{2**power:,}", anchor="middle"))
    shapes.append(svg.line(left, bottom, width - 8, bottom, "axis"))
    middle = (left + width) / 2
    shapes.append(svg.label(middle, height - 4, "tokens", anchor="middle", class_="soft"))
    return shapes


def _mark(point: _Point, x: float, y: float) -> str:
    shape, _ = ROLES[point.sample.role]
    if shape == "circle":
        return svg.circle(x, y, 4.5, "hollow")
    if shape == "square":
        return svg.path(f"M{svg.number(x - 4)} {svg.number(y - 4)}h8v8h-8z", "hollow")
    return svg.path(f"M{svg.number(x)} {svg.number(y - 5.5)}l5.5 5.5l-5.5 5.5l-5.5 -5.5z", "hollow")
