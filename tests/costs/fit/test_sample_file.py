"""Samples survive on disk, and a field that cannot be is named by its line."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sampled import MEASURED_ON, SIZES, samples

from seqplan import Scheme
from seqplan.costs.fit.measurements import MeasurementError, read_measurements
from seqplan.costs.fit.sample_file import SampleFile, read_samples
from seqplan.costs.fit.samples import Sample, SampleError


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with SampleFile(path, MEASURED_ON) as file:
        for measured in samples(Scheme()):
            file.add(replace(measured, layers_host_ms=(1.0, 1.5, 2.0)))
    assert read_samples(path) == (MEASURED_ON, file.samples)
    with SampleFile(path, MEASURED_ON) as again:
        assert again.samples == file.samples
        later = replace(file.samples[0], turn=1)
        again.add(later)
    assert read_samples(path)[1] == [*file.samples, later]


def test_a_line_cut_off_by_a_kill_is_dropped_and_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    first, second = samples(Scheme())[:2]
    with SampleFile(path, MEASURED_ON) as file:
        file.add(first)
        file.add(second)
    path.write_text(path.read_text()[:-40])
    with SampleFile(path, MEASURED_ON) as again:
        assert again.samples == [first]
        again.add(second)
    assert read_samples(path)[1] == [first, second]


def test_reading_leaves_a_file_as_it_is(tmp_path: Path) -> None:
    """Its last line may be one that another process is just writing."""
    path = tmp_path / "s.jsonl"
    with SampleFile(path, MEASURED_ON) as file:
        for measured in samples(Scheme()):
            file.add(measured)
    path.write_bytes(path.read_bytes()[:-40])
    cut = path.read_bytes()
    assert read_samples(path)[1] == file.samples[:-1]
    assert path.read_bytes() == cut


def test_one_run_at_a_time_adds_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    first, second = samples(Scheme())[:2]
    with SampleFile(path, MEASURED_ON) as file:
        file.add(first)
        content = path.read_bytes()
        with pytest.raises(SampleError, match=r"s\.jsonl: another run is adding samples to it; "):
            SampleFile(path, MEASURED_ON)
        assert path.read_bytes() == content
        assert read_samples(path)[1] == [first]  # reading is free to all
        file.add(second)
    with SampleFile(path, MEASURED_ON) as later:
        assert later.samples == [first, second]


@pytest.mark.parametrize("length", [0, 1, 30, -1])
def test_a_file_cut_in_its_first_line_is_finished(tmp_path: Path, length: int) -> None:
    path = tmp_path / "s.jsonl"
    SampleFile(path, MEASURED_ON).close()
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    with pytest.raises(SampleError, match=r"the same seqplan profile measure goes on with it"):
        read_samples(path)
    with SampleFile(path, MEASURED_ON) as file:
        assert file.samples == []
    assert path.read_bytes() == whole


def test_a_line_of_something_else_is_not_written_after(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("shopping: milk")
    with pytest.raises(SampleError, match=r"notes\.txt: has a single line without an end, which"):
        SampleFile(path, MEASURED_ON)
    assert path.read_text() == "shopping: milk"
    with pytest.raises(SampleError, match="cannot be written: Is a directory"):
        SampleFile(tmp_path, MEASURED_ON)


def test_damage_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with SampleFile(path, MEASURED_ON) as file:
        file.add(samples(Scheme())[0])
    path.write_text(path.read_text() + '{"scheme": 3}\n')
    with pytest.raises(SampleError, match=r"s\.jsonl, line 3: not a sample"):
        read_samples(path)
    path.write_text("[" * 100_000 + "\n")
    with pytest.raises(SampleError, match="line 1: not a sample: no JSON: too deeply nested"):
        read_samples(path)
    path.write_text('{"format": 1, "format": 1}\n')
    with pytest.raises(SampleError, match="field 'format' is written twice"):
        read_samples(path)
    with pytest.raises(SampleError, match="cannot be read"):
        read_samples(tmp_path / "none")
    np.save(tmp_path / "lengths.npy", [3, 4])
    for read, error in ((read_samples, SampleError), (read_measurements, MeasurementError)):
        with pytest.raises(error, match=r"lengths\.npy: is not text: byte 1\. Name another file"):
            read(tmp_path / "lengths.npy")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers_ms": []}, "layers_ms: is empty: it must be positive times"),
        ({"ends_ms": [1.0, 0.0]}, "ends_ms: must be positive times"),
        ({"forward_ms": ["x"]}, 'forward_ms[0]: must be a finite number ≥ 0: "x"'),
        ({"layers_ms": [1.0, float("inf")]}, "layers_ms[1]: must be a finite number ≥ 0: Infinity"),
        ({"layers_ms": [1e308] * 3}, "layers_ms: must be positive times of at most 1e+09 ms"),
        ({"layers_ms": 3.0}, "layers_ms: must be a list: 3.0"),
        ({"layers_yardstick_ms": [1.0]}, "layers_yardstick_ms: has 1 times, layers_ms 3"),
        ({"ends_yardstick_ms": [1.0, 0.0, 1.0]}, "ends_yardstick_ms: must be positive times"),
        ({"layers_host_ms": [1.0]}, "layers_host_ms: has 1 times, layers_ms 3"),
        ({"layers_cpu_ms": [-1.0] * 3}, "layers_cpu_ms[0]: must be a finite number ≥ 0: -1.0"),
        ({"experts_ms": [0.0]}, "experts_ms: must be positive times"),
        ({"turn": "x"}, 'turn: must be an integer ≥ 0: "x"'),
        ({"layers": 0}, "layers: must be an integer ≥ 1: 0"),
        ({"layers": "2"}, 'layers: must be an integer ≥ 1: "2"'),
        ({"lengths": []}, "lengths: is empty"),
        ({"lengths": [-5]}, "lengths[0]: must be an integer ≥ 1: -5"),
        ({"lengths": "123"}, "lengths: must be a list of integers"),
        ({"role": "trained"}, 'role: must be one of fit, held-out, packed: "trained"'),
        ({"oom": "no"}, 'oom: must be true or false: "no"'),
        ({"saved_bytes": "ab"}, 'saved_bytes: must be an integer ≥ 0: "ab"'),
        ({"layers_peak_bytes": "x"}, 'layers_peak_bytes: must be an integer ≥ 0: "x"'),
        ({"reserved_bytes": [1]}, "reserved_bytes: must be an integer ≥ 0: a list"),
        ({"scheme": "tp1"}, 'scheme: must be an object: "tp1"'),
        ({"scheme": {"tp": 0, "pp": 1, "ulysses": 1, "ring": 1}}, "scheme.tp: must be an integer"),
        ({"saved_byte": 3}, "saved_byte: is not a field of a sample"),
    ],
)
def test_fields_that_cannot_be_are_named(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "s.jsonl"
    with SampleFile(path, MEASURED_ON) as file:
        file.add(samples(Scheme())[0])
    header, line = path.read_text().splitlines()
    path.write_text(f"{header}\n{json.dumps({**json.loads(line), **change})}\n")
    whole = rf"s\.jsonl, line 2: not a sample: {re.escape(message)}.*\. Remove or repair the line$"
    with pytest.raises(SampleError, match=whole):
        read_samples(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": 3}, "device: must be a string: 3"),
        ({"dtype": "int8"}, "dtype: must be one of float64, float32, bfloat16, float16: "),
        ({"recompute": "half"}, "recompute: unknown recomputation mode: half. Give one of none, "),
        ({"format": 2}, "format: is 2, this version reads 1. Measure again with this version"),
        ({"format": None}, "format: is null, this version reads 1"),
        ({"model": [1]}, "model: must be an object: a list"),
        ({"model": {**SIZES, "hidden": "x"}}, 'model.hidden: must be an integer ≥ 1: "x"'),
        ({"model": {**SIZES, "experts": "x"}}, "model: experts must be a whole number: 'x'"),
        ({"model": {**SIZES, "hiden": 5}}, "model.hiden: is not a field of a sample"),
        ({"tensor_parallel": "half"}, "tensor_parallel: must be one of sequence-parallel, plain"),
        ({"expert_parallel": 0}, "expert_parallel: must be an integer ≥ 1: 0"),
    ],
)
def test_a_setting_that_cannot_be_is_named(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "s.jsonl"
    SampleFile(path, MEASURED_ON).close()
    path.write_text(f"{json.dumps({**json.loads(path.read_text()), **change})}\n")
    with pytest.raises(SampleError, match=rf"s\.jsonl, line 1: not a sample: {re.escape(message)}"):
        read_samples(path)


def test_samples_are_read_as_they_were_written(tmp_path: Path) -> None:
    every = replace(
        samples(Scheme(tp=2, ring=3))[0],
        **dict.fromkeys(("turn", "allocated_bytes", "reserved_bytes", "host_bytes"), 5),
        layers_peak_bytes=7,
        ends_peak_bytes=9,
        **dict.fromkeys(("layers_yardstick_ms", "ends_yardstick_ms"), (0.5, 1.5, 2.5)),
        **dict.fromkeys(("layers_cpu_ms", "layers_host_ms"), (0.0, 1.5, 2.5)),
        experts_ms=(0.25,),
        experts_yardstick_ms=(0.75,),
    )
    lost = Sample.out_of_memory(Scheme(), "packed", (7, 9), 2, 1)
    setting = replace(
        MEASURED_ON, tensor_parallel="sequence-parallel", kernel="fa2", expert_parallel=4
    )
    with SampleFile(tmp_path / "s.jsonl", setting) as file:
        for sample in (every, lost):
            file.add(sample)
    assert read_samples(file.path) == (setting, [every, lost])


def test_files_from_before_peaks_were_read_are_read(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    new = replace(samples(Scheme())[0], layers_peak_bytes=7, ends_peak_bytes=9)
    with SampleFile(path, MEASURED_ON) as file:
        file.add(new)
    assert read_samples(path)[1] == [new]
    header, line = path.read_text().splitlines()
    fields = json.loads(line)
    del fields["layers_peak_bytes"], fields["ends_peak_bytes"]
    path.write_text(f"{header}\n{json.dumps(fields)}\n")
    assert read_samples(path)[1] == [samples(Scheme())[0]]
