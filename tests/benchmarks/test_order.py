"""``./run bench order`` on two ranks: complete rows and files. Times are never judged."""

import csv
import math
from pathlib import Path

import pytest

from benchmarks.order import SETTING, Order, Setting, execute_order, list_results, write_order
from seqplan.runtime.models.llama import ModelConfig

TINY = Setting(
    ranks=2,
    config=ModelConfig(hidden=32, layers=2, heads=4, kv_heads=2, ffn=64, vocab=64),
    strategies=("2xtp1", "1xu2", "1xpp2"),
    lengths=(64, 17, 30, 9, 22),
    capacity=64,
    measured=(8, 64),
    measured_repeats=1,
    repeats=2,
    processor_time=True,
)


@pytest.fixture(scope="module")
def order() -> Order:
    return execute_order(TINY)


def test_every_strategy_has_a_complete_row(order: Order) -> None:
    assert {row.strategy for row in order.rows} == {"2×tp1", "1×u2", "1×pp2"}
    for row in order.rows:
        assert row.micro_batches >= 1
        assert not row.heterogeneous
        times = row.pipelines_ms, row.sync_ms, row.simulated_ms, row.executed_ms, row.wall_ms
        assert all(math.isfinite(ms) and ms > 0 for ms in times)
        assert row.predicted_ms == row.pipelines_ms + row.sync_ms
    assert -1 <= order.correlation() <= 1


def test_table_and_file_have_all_rows(order: Order, tmp_path: Path) -> None:
    printed = "\n".join(map(str, list_results(order)))
    assert "replayed on a core per rank" in printed
    write_order(order, tmp_path / "results")
    with (tmp_path / "results" / "order.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(order.rows)
    for row, written in zip(order.rows, rows, strict=True):
        assert written["strategy"] == row.strategy
        assert f"| {row.strategy} |" in printed
        assert all(written.values())


def test_the_setting_has_twenty_strategies_of_every_kind() -> None:
    strategies = SETTING.parsed
    assert len(set(strategies)) == len(strategies) >= 20
    assert {strategy.gpus for strategy in strategies} == {SETTING.ranks}
    schemes = {scheme for strategy in strategies for scheme, _ in strategy.counts}
    for axis in ("tp", "pp", "ulysses", "ring"):
        assert any(getattr(scheme, axis) > 1 for scheme in schemes)
    assert any(not strategy.homogeneous for strategy in strategies)
    assert any(strategy.homogeneous for strategy in strategies)
