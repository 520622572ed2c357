"""The page on planning inside a program: its code runs as it is."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "in-process.md"


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 14
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert "gap" in capsys.readouterr().out
    assert (tmp_path / "by-hand.jsonl").stat().st_size > 100
    assert names["plan"].pipelines
