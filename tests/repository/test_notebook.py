"""The quickstart notebook executes, and its page has outputs of this code."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "notebook.md"
SHORTER = {
    '"--repeats", "3"': '"--repeats", "1"',
    '"32..1024"': '"32..128"',
    "for step in range(6):": "for step in range(2):",
}
"""Measurements and steps of the page, and fewer: no test reads the errors of this profile."""
LEFT_OUT = 4
"""Steps of the page that the test does not run."""


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    """``docs/run_notebook.py``, which is in no package."""
    spec = importlib.util.spec_from_file_location("run_notebook", DOCS / "run_notebook.py")
    module = sys.modules["run_notebook"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_planning_times(output: str) -> list[str]:
    """Return the lines without what each run measures anew."""
    return [re.sub(r"planning: .*", "", line) for line in output.splitlines()]


def test_a_page_is_its_cells(runner: ModuleType) -> None:
    text = PAGE.read_text("utf-8")
    assert runner.write_page(runner.read_cells(text)) == text


def test_the_notebook_executes(runner: ModuleType, tmp_path: Path) -> None:
    page = PAGE.read_text("utf-8")
    for long, short in SHORTER.items():
        assert page.count(long) == 1
        page = page.replace(long, short)
    cells = runner.read_cells(page)
    outputs = runner.list_printed(runner.execute_notebook(cells, tmp_path))
    code = [cell for cell in cells if cell.code]
    assert len(outputs) == len(code)
    for cell, output in zip(code, outputs, strict=True):
        assert bool(output) == bool(cell.output), cell.text
    # The chats, whether it pays, lengths and a plan follow from the seed; later cells are measured.
    for cell, output in list(zip(code, outputs, strict=True))[:4]:
        assert without_planning_times(output) == without_planning_times(cell.output)
    assert outputs[-1].splitlines()[0] == code[-1].output.splitlines()[0]
    assert len(outputs[-1].splitlines()) == len(code[-1].output.splitlines()) - LEFT_OUT
    assert (tmp_path / "tiny-plans.jsonl").stat().st_size > 1000
