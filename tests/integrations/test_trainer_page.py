"""The page on trainers: its code trains."""

import re
from pathlib import Path
from typing import Any

import pytest
from trainer_ranks import SAMPLES, arguments, model, needs_trainer, on_ranks

pytestmark = needs_trainer
PAGE = Path(__file__).parents[2] / "docs" / "transformers-trainer.md"


def run_the_page() -> int:
    code, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    # The page's figures are those of a device; the samples here are short and few.
    assert code.count("sequences=64, capacity=16_384") == 1
    code = code.replace("sequences=64, capacity=16_384", "sequences=12, capacity=160")
    names: dict[str, Any] = {"dataset": SAMPLES, "model": model(), "args": arguments("unused")}
    exec(code, names)
    return int(names["trainer"].state.global_step)


def test_the_code_of_the_page_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert on_ranks(2, run_the_page) == [6, 6]
