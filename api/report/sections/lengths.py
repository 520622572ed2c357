"""The data: how long its sequences are, and what every step got of them."""

from __future__ import annotations

from collections.abc import Iterator

from seqplan.api.report.drawing.markup import section, table
from seqplan.api.report.drawing.numbers import percent, whole
from seqplan.api.report.drawing.rows import figure, legend, piece, row, track
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
        figure(
            "Lengths of the data set",
            f"{total:,} sequences with {tokens:,} tokens; each row holds the lengths up to its "
            "number and above the row before.",
            legend([("other", "share of sequences"), ("ours", "share of tokens")]),
            *_histogram(comparison, total, tokens),
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


def _histogram(comparison: Comparison, total: int, tokens: int) -> Iterator[str]:
    """Yield a row for each range of lengths: its shares of sequences and tokens."""
    shares = [(_share(n, total), _share(t, tokens)) for _, n, t in comparison.histogram]
    largest = max((max(pair) for pair in shares), default=0) or 1
    for (up_to, _, _), (of_all, of_tokens) in zip(comparison.histogram, shares, strict=True):
        yield row(
            f"≤ {up_to:,}",
            f"{percent(of_all)} of sequences, {percent(of_tokens)} of tokens",
            track(piece("other", 0, of_all / largest)),
            track(piece("ours", 0, of_tokens / largest)),
        )
