"""The page on the core: its files exist, and have about as many lines as it states."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOLERANCE = 0.05


def test_the_core_has_the_stated_files_and_lines() -> None:
    text = (ROOT / "docs" / "core.md").read_text("utf-8").partition("## After the core")[0]
    files = re.findall(r"^\| `([\w/]+\.py)` \|", text, re.MULTILINE)
    stated = re.search(r"(\d+) files of ([\d,]+) lines", text)
    assert len(set(files)) == len(files) == int(stated[1])
    lines = sum(len((ROOT / name).read_text("utf-8").splitlines()) for name in files)
    expected = int(stated[2].replace(",", ""))
    assert abs(lines - expected) <= TOLERANCE * expected, f"{lines} lines: write that"
