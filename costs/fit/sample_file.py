"""Measured samples on disk, one JSON object a line, so that an interrupted run can go on."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, Self

from seqplan.costs.fit.samples import (
    PLAIN_TENSOR_PARALLEL,
    UNRECORDED_KERNEL,
    MeasuredOn,
    Sample,
    SampleError,
    require_same,
)
from seqplan.costs.fit.sync_samples import SyncSample
from seqplan.costs.model_sizes import SIZES, ModelSizes
from seqplan.plans.scheme import Scheme

FORMAT = 1

_SYNC = "sync"
"""Key of a line that is no sample of a micro-batch."""


class SampleFile:
    """Samples measured on one device and model; new ones are appended to the file.

    They are on disk before ``add`` returns. Until ``close``, or its end, this process alone adds to
    the file. A last line that a killed run left unfinished is cut off, a first line finished.
    ``SampleError`` for a file that another run is adding to, one measured on something else, and
    one that is damaged before its last line.
    """

    def __init__(self, path: Path, measured_on: MeasuredOn) -> None:
        self.path = path
        self.samples: list[Sample] = []
        self.syncs: list[SyncSample] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise SampleError(
                f"{path}: cannot be written: {error.strerror}. Check the folder and its free space"
            ) from None
        try:
            self._lock()
            self._go_on(measured_on)
        except BaseException:
            self.close()
            raise

    def add(self, sample: Sample) -> None:
        """Append a sample."""
        self._append(_line(_sample_fields(sample)))
        self.samples.append(sample)

    def add_sync(self, sync: SyncSample) -> None:
        """Append a measured sync."""
        self._append(_line({_SYNC: sync.as_dict()}))
        self.syncs.append(sync)

    def close(self) -> None:
        """Let other runs add to the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SampleError(
                f"{self.path}: another run is adding samples to it; wait for its end, or name "
                "another file (--samples)"
            ) from None

    def _go_on(self, measured_on: MeasuredOn) -> None:
        """Read the file's content, and make the file end with a whole line."""
        content = _content(self.path)
        header = _line({"format": FORMAT, **_list_hardware_fields(measured_on)})
        if b"\n" not in content:
            if not header.startswith(content):
                raise SampleError(
                    f"{self.path}: has a single line without an end, which is not how samples of "
                    "this device, model and dtype begin; name another file (--samples)"
                )
            self._append(header[len(content) :])
            return
        before, self.samples, self.syncs = _parse(self.path, content)
        require_same(before, measured_on, str(self.path))
        self._file.truncate(content.rindex(b"\n") + 1)

    def _append(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())


def read_samples(path: Path) -> tuple[MeasuredOn, list[Sample]]:
    """Read a file, which stays as it is: its setting, and its samples.

    A last line without an end is left out: a run was killed, or is just writing it. ``SampleError``
    names the line that cannot be read.
    """
    measured_on, samples, _ = _parse(path, _content(path))
    return measured_on, samples


def read_syncs(path: Path) -> list[SyncSample]:
    """Read the syncs that were measured next to the samples, as ``read_samples`` does."""
    return _parse(path, _content(path))[2]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SampleError(f"{path}: cannot be read: {error.strerror}. Check the path") from None


def _parse(path: Path, content: bytes) -> tuple[MeasuredOn, list[Sample], list[SyncSample]]:
    whole = content[: content.rfind(b"\n") + 1]
    try:
        lines = whole.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise SampleError(f"{path}: cannot be read: {error}. Check the path") from None
    if not lines:
        raise SampleError(
            f"{path}: holds no samples: its first line has no end, as of a run that was killed; "
            "the same seqplan profile measure goes on with it"
        )
    number = 1
    try:
        measured_on = _find_hardware(json.loads(lines[0]))
        samples, syncs = [], []
        for number, line in enumerate(lines[1:], start=2):  # noqa: B007 - for the message
            fields = json.loads(line)
            if _SYNC in fields:
                syncs.append(SyncSample.from_dict(fields[_SYNC]))
            else:
                samples.append(_sample(fields))
    except (ValueError, KeyError, TypeError) as error:
        raise SampleError(
            f"{path}, line {number}: not a sample ({error}). Remove or repair the line"
        ) from None
    return measured_on, samples, syncs


def _line(fields: Mapping[str, Any]) -> bytes:
    return (json.dumps(fields) + "\n").encode()


def _list_hardware_fields(measured_on: MeasuredOn) -> dict[str, Any]:
    return {
        "device": measured_on.device,
        "dtype": measured_on.dtype,
        "recompute": measured_on.recompute,
        "model": measured_on.sizes(),
        "tensor_parallel": measured_on.tensor_parallel,
        "kernel": measured_on.kernel,
        **({"expert_parallel": degree} if (degree := measured_on.expert_parallel) > 1 else {}),
    }


def _find_hardware(fields: Mapping[str, Any]) -> MeasuredOn:
    if fields["format"] != FORMAT:
        raise ValueError(
            f"format {fields['format']}, this version reads {FORMAT}"
            ". Measure again with this version"
        )
    if lacking := [name for name in SIZES if name not in fields["model"]]:
        raise ValueError(f"model lacks {', '.join(lacking)}. Measure again with this version")
    ModelSizes.from_mapping(fields["model"])
    return MeasuredOn(
        fields["device"],
        fields["dtype"],
        fields["recompute"],
        tuple(fields["model"].items()),
        fields.get("tensor_parallel", PLAIN_TENSOR_PARALLEL),
        fields.get("kernel", UNRECORDED_KERNEL),
        _degree(fields.get("expert_parallel", 1)),
    )


def _degree(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"expert_parallel must be a whole number of 1 or more, not {value!r}")
    return value


def _sample_fields(sample: Sample) -> dict[str, Any]:
    return {
        "scheme": sample.scheme.as_dict(),
        "role": sample.role,
        "lengths": list(sample.lengths),
        "layers": sample.layers,
        "layers_ms": list(sample.layers_ms),
        "ends_ms": list(sample.ends_ms),
        "forward_ms": list(sample.forward_ms),
        "saved_bytes": sample.saved_bytes,
        "layers_saved_bytes": sample.layers_saved_bytes,
        "oom": sample.oom,
        "layers_peak_bytes": sample.layers_peak_bytes,
        "ends_peak_bytes": sample.ends_peak_bytes,
        "turn": sample.turn,
        "layers_yardstick_ms": list(sample.layers_yardstick_ms),
        "ends_yardstick_ms": list(sample.ends_yardstick_ms),
        "allocated_bytes": sample.allocated_bytes,
        "reserved_bytes": sample.reserved_bytes,
        "layers_cpu_ms": list(sample.layers_cpu_ms),
        **({"layers_host_ms": list(sample.layers_host_ms)} if sample.layers_host_ms else {}),
        **({"experts_ms": list(sample.experts_ms)} if sample.experts_ms else {}),
        **({"host_bytes": sample.host_bytes} if sample.host_bytes else {}),
    }


def _sample(fields: Mapping[str, Any]) -> Sample:
    for name in ("layers_ms", "ends_ms", "forward_ms"):
        if not fields["oom"] and not (fields[name] and all(0 < ms < inf for ms in fields[name])):
            raise ValueError(f"{name} must be positive times, not {fields[name]}")
    for name in ("layers", "ends"):
        times, readings = fields[f"{name}_ms"], fields.get(f"{name}_yardstick_ms", [])
        if readings and not (len(readings) == len(times) and all(0 < ms < inf for ms in readings)):
            raise ValueError(
                f"{name}_yardstick_ms must be {len(times)} positive times, as {name}_ms has, "
                f"not {readings}"
            )
    cpu = fields.get("layers_cpu_ms", [])
    if cpu and not (len(cpu) == len(fields["layers_ms"]) and all(0 <= ms < inf for ms in cpu)):
        raise ValueError(f"layers_cpu_ms must be as many times as layers_ms has, not {cpu}")
    host = fields.get("layers_host_ms", [])
    if host and not (len(host) == len(fields["layers_ms"]) and all(0 <= ms < inf for ms in host)):
        raise ValueError(
            f"layers_host_ms must be {len(fields['layers_ms'])} times of 0 or more, as layers_ms "
            f"has, not {host}"
        )
    if not all(0 < ms < inf for ms in fields.get("experts_ms", [])):
        raise ValueError(f"experts_ms must be positive times, not {fields['experts_ms']}")
    if type(fields.get("turn", 0)) is not int:
        raise ValueError(f"turn must be an integer, not {fields['turn']!r}")
    return Sample(
        scheme=Scheme(**fields["scheme"]),
        role=fields["role"],
        lengths=tuple(fields["lengths"]),
        layers=fields["layers"],
        layers_ms=tuple(fields["layers_ms"]),
        ends_ms=tuple(fields["ends_ms"]),
        forward_ms=tuple(fields["forward_ms"]),
        saved_bytes=fields["saved_bytes"],
        layers_saved_bytes=fields["layers_saved_bytes"],
        oom=fields["oom"],
        # Files written before these were measured do not have them.
        layers_peak_bytes=fields.get("layers_peak_bytes"),
        ends_peak_bytes=fields.get("ends_peak_bytes"),
        turn=fields.get("turn", 0),
        layers_yardstick_ms=tuple(fields.get("layers_yardstick_ms", ())),
        ends_yardstick_ms=tuple(fields.get("ends_yardstick_ms", ())),
        allocated_bytes=fields.get("allocated_bytes"),
        reserved_bytes=fields.get("reserved_bytes"),
        layers_cpu_ms=tuple(fields.get("layers_cpu_ms", ())),
        layers_host_ms=tuple(fields.get("layers_host_ms", ())),
        experts_ms=tuple(fields.get("experts_ms", ())),
        host_bytes=fields.get("host_bytes", 0),
    )
