"""Sweeps: the same comparison for each value, and why a value has none."""

import pytest
from settings_made import CODE

from seqplan.api.cli.parts.compare_output import sweep_lines
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.comparison.compare import Options, compare
from seqplan.planner.comparison.results import Comparison
from seqplan.planner.comparison.sweep import Sweep, SweptPoint, SweptSystem, point_of, sweep
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.workload import Workload

PROFILE = load_shipped("llama-7b-a800-80gb").restrict(measured=True)


def compared(gpus: int) -> Comparison:
    options = Options(("static", "megatron"))
    workload = Workload(gpus, 16384, 20_000)
    return compare(PROFILE, workload, CODE, 2, choose_sync(PROFILE, gpus), options=options)


def test_each_point_is_the_comparison_of_its_value() -> None:
    by_gpus = sweep("gpus", [4, 1], compared)
    assert [point.value for point in by_gpus.points] == [4, 1]
    alone = compared(4)
    assert by_gpus.points[0] == point_of(4, alone)
    ours, *others = by_gpus.points[0].systems
    assert (ours.key, ours.speedup) == ("ours", 1.0)
    assert ours.mean_ms == alone.ours.mean_ms
    for system, same in zip(others, alone.systems[1:], strict=True):
        assert system.speedup == pytest.approx(same.mean_ms / alone.ours.mean_ms)
    assert not by_gpus.points[1].systems
    assert by_gpus.notes()[0].startswith("1: not possible: 1 GPU is too few for llama-7b-a800-80gb")


def test_an_unknown_axis_is_rejected() -> None:
    with pytest.raises(ValueError, match="unknown axis 'steps'; there are gpus, max-len, tokens"):
        sweep("steps", [1], compared)


def swept(key: str, speedup: float) -> SweptSystem:
    return SweptSystem(key, key.title(), 100 * speedup, 90.0, 5000 / speedup, speedup)


def sweep_of_two() -> Sweep:
    """A missing system, a reason for all values, a value with none."""
    everywhere = ("Deep", "has no micro-steps")
    return Sweep(
        "tokens",
        (
            SweptPoint(1000, 1000, (swept("ours", 1.0), swept("other", 1.25)), (everywhere,)),
            SweptPoint(2000, 2000, (swept("ours", 1.0),), (("Other", "too long"), everywhere)),
            SweptPoint(3000, 0, (), (), "no data"),
        ),
    )


def test_a_table_with_all_values() -> None:
    lines = sweep_lines(sweep_of_two())
    assert lines[0].split() == ["tokens/s", "by", "tokens", "1,000", "2,000", "3,000"]
    assert lines[2].split() == ["Ours", "5,000", "5,000", "—"]
    assert lines[3].split() == ["Other", "4,000", "(1.25×)", "—", "—"]
    assert lines[4:] == [
        "3,000: not possible: no data",
        "throughout: left out: Deep: has no micro-steps",
        "2,000: left out: Other: too long",
    ]
