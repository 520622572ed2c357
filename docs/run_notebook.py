"""The quickstart notebook: ``python docs/run_notebook.py`` executes it and writes its outputs.

A cell is a block of Python of ``notebook.md``; the block of text after it is its output. With
``--ipynb FILE`` the executed notebook is also written as Jupyter's JSON.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

PAGE = Path(__file__).with_name("notebook.md")
TIMEOUT_S = 600
"""Maximum seconds of a cell, and of the start of the kernel."""

MARK = "<!-- run by: tests/repository/test_notebook.py -->"
_BLOCK = re.compile(
    rf"^{MARK}\n```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Cell:
    """A part of the page: prose, or code with the output that the page has."""

    text: str
    code: bool = False
    output: str = ""


def read_cells(page: str) -> list[Cell]:
    """Split a page into cells."""
    cells, at = [], 0
    for block in _BLOCK.finditer(page):
        cells.append(Cell(page[at : block.start()].strip("\n")))
        cells.append(Cell(block[1].rstrip("\n"), code=True, output=block[2] or ""))
        at = block.end()
    cells.append(Cell(page[at:].strip("\n")))
    return [cell for cell in cells if cell.code or cell.text]


def write_page(cells: list[Cell]) -> str:
    """Join cells to a page."""
    parts = []
    for cell in cells:
        parts.append(f"{MARK}\n```python\n{cell.text}\n```" if cell.code else cell.text)
        if cell.output:
            parts.append(f"```text\n{cell.output}```")
    return "\n\n".join(parts) + "\n"


def execute_notebook(cells: list[Cell], folder: Path) -> Any:
    """Execute the cells in a new kernel in ``folder``; return the notebook with outputs.

    ``CellExecutionError`` if a cell fails.
    """
    notebook = nbformat.v4.new_notebook()
    for cell in cells:
        make = nbformat.v4.new_code_cell if cell.code else nbformat.v4.new_markdown_cell
        notebook.cells.append(make(cell.text))
    NotebookClient(
        notebook,
        timeout=TIMEOUT_S,
        startup_timeout=TIMEOUT_S,
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    return notebook


def list_printed(notebook: Any) -> list[str]:
    """Return what each cell of code printed, without spaces at the ends of lines."""
    return [
        "".join(
            f"{line.rstrip()}\n"
            for output in cell.outputs
            if output.output_type == "stream" and output.name == "stdout"
            for line in output.text.rstrip("\n").splitlines()
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def main() -> None:
    """Execute the page and write its outputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ipynb", metavar="FILE", type=Path, help="also write a Jupyter notebook")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    cells = read_cells(PAGE.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        notebook = execute_notebook(cells, Path(folder))
    outputs = iter(list_printed(notebook))
    PAGE.write_text(
        write_page([Cell(c.text, True, next(outputs)) if c.code else c for c in cells]), "utf-8"
    )
    if args.ipynb is not None:
        nbformat.write(notebook, args.ipynb)


if __name__ == "__main__":
    main()
