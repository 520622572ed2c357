"""The data: how long its sequences are, and what every step got of them."""

from __future__ import annotations

from seqplan.api.report.drawing import svg
from seqplan.api.report.drawing.markup import section, table
from seqplan.api.report.drawing.numbers import percent, whole
from seqplan.planner.comparison.results import Comparison


def lengths(comparison: Comparison) -> str:
    """Histogram of the data set, and the batches in a table."""
    total = sum(count for _, count, _ in comparison.histogram)
    tokens = sum(tokens for _, _, tokens in comparison.histogram)
    return section(
        "data",
        "The data",
        f"How long the {comparison.sequences:,} sequences of the data set are, and what each step "
        f"got of them; a step takes sequences of at most {comparison.max_len:,} tokens.",
        svg.figure(
            "histogram",
            "Lengths of the data set",
            "For each power of two, the share of sequences up to that length and the share of "
            "tokens that they hold.",
            f"{total:,} sequences with {tokens:,} tokens; each row holds the lengths up to its "
            "number and above the row before.",
            lambda width: _histogram(comparison, width),
        ),
        table(
            "Lengths of the data set",
            ["Length up to (tokens)", "Sequences", "of all", "Tokens", "of all"],
            [
                [
                    *(whole(up_to), whole(n), percent(_share(n, total))),
                    *(whole(t), percent(_share(t, tokens))),
                ]
                for up_to, n, t in comparison.histogram
            ],
            left=0,
        ),
        table(
            "Batches",
            ["Step", "Sequences", "Tokens", "Longest (tokens)"],
            [
                [
                    whole(iteration.step),
                    whole(iteration.sequences),
                    whole(iteration.tokens),
                    whole(iteration.longest),
                ]
                for iteration in comparison.ours.iterations
            ],
            left=0,
        ),
    )


def _share(part: int, total: int) -> float:
    return part / total if total else 0.0


def _histogram(comparison: Comparison, width: float) -> svg.Drawing:
    shapes, top = svg.legend(
        [("other", "share of sequences"), ("ours", "share of tokens")], width, 0
    )
    rows = comparison.histogram
    total = sum(count for _, count, _ in rows)
    tokens = sum(count for _, _, count in rows)
    names = [f"≤ {up_to:,}" for up_to, _, _ in rows]
    left = max((svg.text_width(name) for name in names), default=0) + 8
    right = width - svg.text_width("100.0 %") - 6
    shares = [(_share(n, total), _share(t, tokens)) for _, n, t in rows]
    scale = svg.Scale(0, max((max(pair) for pair in shares), default=0) or 1, 0, right - left)
    for at, (name, pair) in enumerate(zip(names, shares, strict=True)):
        y = top + at * 32
        shapes.append(svg.label(left - 6, y + 18, name, anchor="end"))
        for line_at, (share, class_) in enumerate(zip(pair, ("other", "ours"), strict=True)):
            below = y + 1 + line_at * 13
            if share > 0:
                shapes.append(svg.rect(left, below, max(scale(share), 0.5), 11, class_))
            shapes.append(svg.label(left + scale(share) + 6, below + 10, percent(share)))
    height = top + 32 * len(rows) + 2
    shapes.append(svg.line(left, top - 2, left, height - 4, "axis"))
    return svg.Drawing(height, tuple(shapes))
