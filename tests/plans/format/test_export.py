"""Plain exports of plans: every rank's ids, read by the code of the documentation."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from seqplan import construct_plan
from seqplan.plans.format.export import COLUMNS, check_export, export_plans

PAGE = Path(__file__).parents[3] / "docs" / "plan-format.md"
PLANS = [
    construct_plan(
        [10, 21, 30, 40], {"u2": [[[0, 3], [1]]], "r2": [[[2]]]}, ids=[7, 5, 9, 1], step=step
    )
    for step in (0, 1)
]
LISTS = [[[7, 1], [5]], [[7, 1], [5]], [[9]], [[9]]]
"""Of each rank."""


def test_the_pages_code_reads_both_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("export.jsonl", "export.parquet"):
        with export_plans(tmp_path / name) as export:
            for plan in PLANS:
                export(plan)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    code = [block for block in blocks if "export." in block]
    assert len(code) == 2
    names: dict[str, Any] = {}
    for block in code:
        exec(block, names)
    assert names["loader"] == {(s, rank): LISTS[rank] for s in (0, 1) for rank in range(4)}
    assert names["ids"] == [9]
    assert names["table"].column_names == list(COLUMNS)


def test_rows_locate_each_sequence(tmp_path: Path) -> None:
    from pyarrow import parquet

    path = tmp_path / "export.parquet"
    with export_plans(path) as export:
        export(PLANS[1])
    rows = [tuple(row.values()) for row in parquet.read_table(path).to_pylist()]
    assert rows[:3] == [(1, 0, 0, 0, 7, 10), (1, 0, 0, 1, 1, 40), (1, 0, 1, 0, 5, 21)]
    assert len(rows) == 8


def test_an_idle_rank_has_a_line_without_work(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    with export_plans(path) as export:
        export(construct_plan([5], {"u2": [[[0]]]}, world_size=3))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[2] == {"step": 0, "rank": 2, "micro_batches": []}


@pytest.mark.parametrize("name", ["export.csv", "export"])
def test_other_forms_are_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"ends in \.jsonl or \.parquet"):
        check_export(tmp_path / name)


def test_a_failure_leaves_no_half_file(tmp_path: Path) -> None:
    def half(path: Path) -> None:
        with export_plans(path) as export:
            export(PLANS[0])
            raise RuntimeError("half")

    for name in ("export.jsonl", "export.parquet"):
        with pytest.raises(RuntimeError, match="half"):
            half(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
