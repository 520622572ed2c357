"""Measured samples on disk, one JSON object a line, so that an interrupted run can go on."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from seqplan.costs.fit.sample_reader import FORMAT, SampleReader, list_fields
from seqplan.costs.fit.samples import MeasuredOn, Sample, SampleError, require_same
from seqplan.costs.fit.sync_samples import SyncSample
from seqplan.plans.format.canonical import parse_json
from seqplan.plans.format.fields import decode_text

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
        self._append(_line(list_fields(sample)))
        self.samples.append(sample)

    def add_sync(self, sync: SyncSample) -> None:
        """Append a measured sync."""
        self._append(_line({_SYNC: list_fields(sync)}))
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
        header = _line({"format": FORMAT, **list_fields(measured_on)})
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
    lines = decode_text(path, whole, SampleError).splitlines()
    if not lines:
        raise SampleError(
            f"{path}: holds no samples: its first line has no end, as of a run that was killed; "
            "the same seqplan profile measure goes on with it"
        )
    samples, syncs = [], []
    for number, line in enumerate(lines, start=1):
        reader = SampleReader(f"{path}, line {number}: not a sample")
        try:
            fields = parse_json(line, finite=False)
        except ValueError as error:
            reader.fail("", f"no JSON: {error}")
        if number == 1:
            measured_on = reader.read_setting(fields)
        elif isinstance(fields, dict) and fields.keys() == {_SYNC}:
            syncs.append(reader.read_sync(fields[_SYNC]))
        else:
            samples.append(reader.read_sample(fields))
    return measured_on, samples, syncs


def _line(fields: Mapping[str, Any]) -> bytes:
    return (json.dumps(fields) + "\n").encode()
