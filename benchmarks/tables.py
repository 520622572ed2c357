"""Tables that benchmarks print: a head, the format of a row, and values."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

Cells = Sequence[object]
"""Values of one row, in the order of the columns' formats."""

RESULTS = Path(__file__).parents[1] / "docs" / "data"
"""Folder of the results of which the site draws charts."""


@dataclass
class Table:
    """A Markdown table: ``head`` and ``row`` have the columns, divided by bars.

    ``row`` holds a format for each value: ``"{} | {:,} | {:.1%} of {:,.0f} ms"``.
    """

    head: str
    row: str
    cells: Iterable[Cells] = ()
    title: str = ""
    rows: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.head.count("|") != self.row.count("|"):
            raise ValueError(f"head and row have different columns: {self.head}")
        for cells in self.cells:
            self.add(*cells)

    def add(self, *cells: object) -> None:
        """Append a row of these values."""
        self.rows.append(self.row.format(*cells))

    def __str__(self) -> str:
        dashes = " | ".join(["---"] * (self.head.count("|") + 1))
        title = f"### {self.title}\n\n" if self.title else ""
        return title + "\n".join(f"| {line} |" for line in (self.head, dashes, *self.rows))


Output = Iterator[Table | str]
"""Tables and text of a benchmark, in the order in which the runner prints them."""


def spread(
    values: Sequence[float], middle: Callable[[Sequence[float]], float] = median
) -> tuple[float, float, float]:
    """Return the middle, least and largest of some values."""
    return float(middle(values)), min(values), max(values)


def write_csv(
    name: str, head: Sequence[str], rows: Iterable[Cells], folder: Path = RESULTS
) -> None:
    """Write rows to a file of results."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
