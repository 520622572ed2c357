"""Syncs that were measured: kept next to the samples, extended to the whole model."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from seqplan.costs.fit.pooling import merge_sync_samples
from seqplan.costs.fit.sample_file import SampleFile, read_samples, read_syncs
from seqplan.costs.fit.sample_reader import list_fields
from seqplan.costs.fit.samples import MeasuredOn, SampleError
from seqplan.costs.fit.sync_samples import SyncSample, fit_sync

MODEL = {"hidden": 32, "layers": 8, "heads": 4, "kv_heads": 2, "ffn": 48, "vocab": 50}
MEASURED_ON = MeasuredOn("a device", "float32", "none", tuple(MODEL.items()))
ONE = SyncSample(1, 1, 4, 1, (5.0, 7.0, 6.0), (2.0,))
TWO = replace(ONE, layers=2, sync_ms=(8.0, 10.0, 9.0), optimizer_ms=(2.5,))


def test_syncs_are_kept_with_the_samples(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with SampleFile(path, MEASURED_ON) as file:
        file.add_sync(ONE)
    with SampleFile(path, MEASURED_ON) as again:
        assert again.syncs == [ONE]
        again.add_sync(TWO)
    assert read_syncs(path) == [ONE, TWO]
    assert read_samples(path) == (MEASURED_ON, [])
    assert merge_sync_samples([path, path]) == [ONE, TWO] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tp": 0}, "tp: must be an integer ≥ 1: 0"),
        ({"sync_ms": []}, "sync_ms: is empty"),
        ({"optimizer_ms": [0.0]}, "optimizer_ms: must be positive times"),
        ({"more": 1}, "more: is not a field of a sample"),
    ],
)
def test_a_damaged_sync_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "s.jsonl"
    SampleFile(path, MEASURED_ON).close()
    with path.open("a") as file:
        file.write(json.dumps({"sync": {**list_fields(ONE), **change}}) + "\n")
    with pytest.raises(SampleError, match=rf"line 2: not a sample: {message}"):
        read_syncs(path)


def test_each_further_layer_takes_as_long_as_the_second() -> None:
    """6 ms with one layer of a stage, 9 with two: 6 + 7·3 with eight, 6 + 3·3 with four."""
    (entry,) = fit_sync([ONE, TWO], 8)
    assert entry == {"tp": 1, "pp": 1, "gpus": 4, "ms": 27.0, "optimizer_ms": 5.5}
    (staged,) = fit_sync([replace(ONE, pp=2), replace(TWO, pp=2)], 8)
    assert (staged["ms"], staged["optimizer_ms"]) == (15.0, 3.5)


def test_more_layers_never_take_less() -> None:
    (entry,) = fit_sync([ONE, replace(TWO, sync_ms=(4.0,))], 8)
    assert entry["ms"] == 6.0


def test_one_number_of_layers_is_enough_where_it_is_all() -> None:
    (entry,) = fit_sync([ONE], 1)
    assert entry["ms"] == 6.0
    with pytest.raises(SampleError, match=r"tp1\.pp1 on 4 ranks was measured with 1 layers"):
        fit_sync([ONE], 8)
