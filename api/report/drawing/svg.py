"""SVG drawn by hand: shapes, scales with ticks, and figures that exist wide and narrow."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from seqplan.api.report.drawing.markup import element, text

WIDE, NARROW = 880, 350
"""Widths (px) a figure is drawn for: a desktop or a page of paper, and a phone.

Text that shrinks with its figure cannot be read on a phone, so each figure is drawn twice and the
style sheet shows one.
"""

DASHES = (None, "7 3", "2 2", "9 3 2 3", "14 4", "5 2 2 2 2 2")
"""Dash patterns, so that neighboring lines differ without color."""

COLORS = 5
"""Classes k0, k1, … of curves. Their number and that of the dashes share no factor, so that lines
are equal only thirty apart."""

MARKS = (
    "M-4 -4h8v8h-8z",
    "M0 -5l5 9h-10z",
    "M0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
    "M0 5l5 -9h-10z",
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
    "M-1.7 -5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z",
    "M-5 -3l2 -2 3 3 3 -3 2 2 -3 3 3 3 -2 2 -3 -3 -3 3 -2 -2 3 -3z",
)
"""Shapes around the origin at the ends of lines, which differ without color or dashes."""

CHARACTER = 0.56
"""Mean width of a character over the font size, on the safe side for sans-serif faces."""


@dataclass(frozen=True)
class Drawing:
    """Shapes in a box of this height (px)."""

    height: float
    shapes: tuple[str, ...]


def number(value: float) -> str:
    """A coordinate with at most one decimal: enough for a pixel, short in the file."""
    written = f"{value:.1f}".removesuffix(".0")
    return "0" if written == "-0" else written


def rect(x: float, y: float, width: float, height: float, class_: str, title: str = "") -> str:
    """A rectangle; ``title`` is what a pointer shows."""
    about = f"<title>{text(title)}</title>" if title else ""
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(max(width, 0))}" '
        f'height="{number(max(height, 0))}" class="{class_}">{about}</rect>'
    )


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight line."""
    return (
        f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" '
        f'class="{class_}"></line>'
    )


def path(commands: str, class_: str, dashes: str | None = None) -> str:
    """A path of SVG commands."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="{commands}" class="{class_}"{dashed}></path>'


def curve(points: Iterable[tuple[float, float]], at: int) -> str:
    """The line of number ``at`` in a chart, in its color and dashes."""
    return path(polyline(points), f"curve k{at % COLORS}", DASHES[at % len(DASHES)])


def mark(x: float, y: float, at: int) -> str:
    """The mark of line number ``at`` in a chart."""
    shape = MARKS[at % len(MARKS)]
    place = f"translate({number(x)} {number(y)})"
    return f'<path d="{shape}" class="mark-of k{at % COLORS}" transform="{place}"></path>'


def circle(x: float, y: float, radius: float, class_: str) -> str:
    """A circle."""
    return f'<circle cx="{number(x)}" cy="{number(y)}" r="{radius}" class="{class_}"></circle>'


def polyline(points: Iterable[tuple[float, float]]) -> str:
    """Path commands through these points."""
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)


def label(x: float, y: float, content: str, *, anchor: str = "start", class_: str = "") -> str:
    """Text at a baseline; ``anchor``: start, middle or end."""
    anchored = "" if anchor == "start" else f' text-anchor="{anchor}"'
    styled = f' class="{class_}"' if class_ else ""
    return f'<text x="{number(x)}" y="{number(y)}"{anchored}{styled}>{text(content)}</text>'


def text_width(content: str, size: float = 12) -> float:
    """An estimate of a text's width (px); wide scripts count double."""
    return sum(
        size * (1.0 if unicodedata.east_asian_width(sign) in "WF" else CHARACTER)
        for sign in content
    )


def fit(content: str, room: float, size: float = 12) -> str:
    """Return the text, cut with an ellipsis if it is wider than ``room`` px."""
    if text_width(content, size) <= room:
        return content
    while content and text_width(content + "…", size) > room:
        content = content[:-1]
    return content.rstrip() + "…"


@dataclass(frozen=True)
class Scale:
    """Maps [low, high] to pixels [start, end], linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value; values outside are held at the ends."""
        value = min(max(value, self.low), self.high)
        if self.high <= self.low:
            return self.start
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, room: float) -> list[float]:
        """Round values in the scale, each with ``room`` px."""
        count = max(2.0, abs(self.end - self.start) / room)
        if self.log:
            return _log_ticks(self.low, self.high, count)
        step = _round_step((self.high - self.low) / count)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [at * step for at in range(first, last + 1)]


def _round_step(rough: float) -> float:
    if rough <= 0 or not math.isfinite(rough):
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next((m * power for m in (1, 2, 5) if m * power >= rough * (1 - 1e-9)), 10 * power)


def _log_ticks(low: float, high: float, count: float) -> list[float]:
    """Powers of ten with their 2 and 5 as far as there is room; powers of two are for lengths."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [f * 10.0**d for d in decades for f in factors if low <= f * 10.0**d <= high]
        if len(ticks) <= count:
            return ticks
    return ticks[:: math.ceil(len(ticks) / count)]


def value_axis(
    y: Scale, right: float, written: Callable[[float], str], room: float = 34
) -> tuple[list[str], float]:
    """Draw grid lines with their values at the left; the shapes, and the x of their begin.

    ``right``: their end; ``room``: px between two lines, at least.
    """
    names = [(y(tick), written(tick)) for tick in y.ticks(room)]
    left = max(text_width(name) for _, name in names) + 8
    shapes = []
    for at, name in names:
        shapes.append(line(left, at, right, at, "grid"))
        shapes.append(label(left - 6, at + 4, name, anchor="end"))
    return shapes, left


def figure(
    ident: str, title: str, about: str, caption: str, draw: Callable[[float], Drawing]
) -> str:
    """A figure for wide and for narrow screens, with title and description for screen readers."""
    drawings = []
    for kind, width in (("wide", WIDE), ("narrow", NARROW)):
        drawing = draw(width)
        name = f"{ident}-{kind}"
        drawings.append(
            element(
                "svg",
                element("title", text(title), id=f"{name}-title"),
                element("desc", text(about), id=f"{name}-desc"),
                "\n".join(drawing.shapes),
                viewBox=f"0 0 {width} {number(drawing.height)}",
                class_=kind,
                role="img",
                aria_labelledby=f"{name}-title {name}-desc",
            )
        )
    return element(
        "figure", element("h3", text(title)), *drawings, element("figcaption", text(caption))
    )


def legend(entries: Iterable[tuple[str, str]], width: float, top: float) -> tuple[list[str], float]:
    """Filled squares of a class with what they mean, in lines; the shapes and the height used."""
    shapes, x, y = [], 0.0, top
    for class_, meaning in entries:
        meaning = fit(meaning, width - 22)
        needed = 20 + text_width(meaning) + 14
        if x and x + needed > width + 14:
            x, y = 0.0, y + 18
        shapes.append(rect(x + 0.5, y + 1.5, 13, 11, class_))
        shapes.append(label(x + 20, y + 12, meaning))
        x += needed
    return shapes, y + 22 - top


def line_legend(names: Iterable[str], width: float, top: float) -> tuple[list[str], float]:
    """A piece of each line with its mark and name, in columns; the shapes and the height used."""
    names = list(names)
    pitch = 46 + max(map(text_width, names), default=0) + 16
    columns = max(1, int((width + 16) // pitch))
    rows = -(-len(names) // columns)
    shapes = []
    for at, name in enumerate(names):
        x, y = at // rows * pitch, top + at % rows * 18 + 9
        shapes += [curve([(x, y), (x + 36, y)], at), mark(x + 36, y, at)]
        shapes.append(label(x + 46, y + 4, fit(name, width - 46)))
    return shapes, 18.0 * rows + 6


def end_labels(
    ends: list[tuple[float, float, str]], right: float, top: float, bottom: float
) -> list[str]:
    """Names of lines in the right margin, apart from one another, led to their ends.

    ``ends``: (y, x, name) of each line's end.
    """
    ends = sorted(ends)
    places: list[float] = []
    for at, (y_end, _, _) in enumerate(ends):
        earliest = places[-1] + 14 if places else top + 6
        latest = bottom - 14 * (len(ends) - 1 - at)
        places.append(min(max(y_end, earliest), max(latest, earliest)))
    shapes = []
    for place, (y_end, x_end, name) in zip(places, ends, strict=True):
        shapes.append(path(polyline([(x_end + 5, y_end), (right + 14, place)]), "leader"))
        shapes.append(label(right + 17, place + 4, name))
    return shapes


def step_bars(
    steps: Sequence[int],
    values: Sequence[float | None],
    width: float,
    written: Callable[[float], str],
    unit: str,
) -> Drawing:
    """Bars over the steps; ``written`` writes a value of the axis, ``unit`` stands above it.

    A value of None has a small cross instead of a bar.
    """
    top, height = 22.0, 190.0
    bottom = height - 34
    highest = max((value for value in values if value is not None), default=0.0) or 1.0
    y = Scale(0, highest * 1.04, bottom, top)
    shapes, left = value_axis(y, width, written)
    shapes.append(label(0, 12, unit, class_="soft"))
    pitch = (width - left - 4) / len(steps)
    bar = max(pitch * 0.72, min(pitch, 0.8)) if pitch > 3 else pitch
    bar = min(bar, 40)
    for at, (step, value) in enumerate(zip(steps, values, strict=True)):
        middle = left + 4 + (at + 0.5) * pitch
        if value is None:
            shapes.append(label(middle, bottom - 3, "×", anchor="middle", class_="soft"))
            continue
        about = f"step {step}: {written(value)}"
        shapes.append(rect(middle - bar / 2, y(value), bar, bottom - y(value), "ours", about))
    shapes.append(line(left, bottom, width, bottom, "axis"))
    shapes += step_ticks(steps, left + 4, pitch, bottom + 15)
    shapes.append(label((left + width) / 2, height - 3, "step", anchor="middle", class_="soft"))
    return Drawing(height, tuple(shapes))


def step_ticks(steps: Sequence[int], left: float, pitch: float, baseline: float) -> list[str]:
    """Numbers of the steps below columns of this pitch, as many as do not touch."""
    room = max(text_width(f"{step:,}") for step in steps) + 8
    every = max(1, -int(-room // pitch))
    return [
        label(left + (at + 0.5) * pitch, baseline, f"{steps[at]:,}", anchor="middle")
        for at in range(0, len(steps), every)
    ]
