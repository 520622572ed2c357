"""Tables of benchmarks: columns of head and rows agree, values are formatted."""

import sys
import types
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.tables import Table, spread, write_csv


def test_rows_are_formatted_under_the_head() -> None:
    table = Table("GPUs | gap", "{:,} | {:.1%}", [(1024, 0.0123)], "Gaps")
    table.add(8, 0.5)
    assert str(table).splitlines() == [
        *("### Gaps", "", "| GPUs | gap |", "| --- | --- |", "| 1,024 | 1.2% |", "| 8 | 50.0% |")
    ]


def test_other_columns_than_the_head_are_an_error() -> None:
    with pytest.raises(ValueError, match="different columns: GPUs"):
        Table("GPUs | gap", "{} | {} | {}")


def test_spread_is_middle_least_and_largest() -> None:
    assert spread([3.0, 1.0, 8.0]) == (3.0, 1.0, 8.0)
    assert spread([3.0, 1.0, 8.0], lambda values: sum(values) / 3) == (4.0, 1.0, 8.0)


def test_results_are_written_with_their_head(tmp_path: Path) -> None:
    write_csv("gaps.csv", ("gpus", "gap"), [(8, "0.5")], tmp_path / "results")
    assert (tmp_path / "results" / "gaps.csv").read_text() == "gpus,gap\n8,0.5\n"


def test_a_benchmark_names_a_module_and_a_function() -> None:
    assert all(target.count(".") == 1 for target in run.BENCHMARKS.values())
    assert len(set(run.BENCHMARKS.values())) == len(run.BENCHMARKS)


def test_printed_percentages_have_a_space(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = types.ModuleType("benchmarks.stub")
    stub.gaps = lambda _: [Table("gap", "{:.1%}", [(0.5,)]), f"at most {0.1:.0%}"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "benchmarks.stub", stub)
    monkeypatch.setattr(run, "BENCHMARKS", {"gaps": "stub.gaps"})
    monkeypatch.setattr(sys, "argv", ["bench", "gaps"])
    monkeypatch.setattr(run, "data_sets", lambda _: ())
    run.main()
    assert "| 50.0 % |\n\nat most 10 %\n" in capsys.readouterr().out
