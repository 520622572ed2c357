"""A value for each step, as bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from seqplan.api.report.drawing.svg import Drawing, Scale, label, line, rect, text_width


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
    ticks = y.ticks(34)
    left = max(text_width(written(tick)) for tick in ticks) + 8
    shapes = [label(0, 12, unit, class_="soft")]
    for tick in ticks:
        shapes.append(line(left, y(tick), width, y(tick), "grid"))
        shapes.append(label(left - 6, y(tick) + 4, written(tick), anchor="end"))
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
