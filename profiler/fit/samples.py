"""Measured samples on disk, one JSON object a line, so that an interrupted run can go on."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Literal, Self

from seqplan.plans.scheme import Scheme
from seqplan.profiler.model_sizes import SIZES, ModelSizes

FORMAT = 1

SEQUENCE_PARALLEL, PLAIN_TENSOR_PARALLEL = "sequence-parallel", "plain"
"""With tp, norms and residuals are split over its ranks, as the runtime has them; or are on every
rank, as they were in samples that do not say how."""

Role = Literal["fit", "held-out", "packed"]
"""What a sample is for: to fit the curve, or to judge it, by one sequence or by several."""


class SampleError(ValueError):
    """Samples that cannot be read or do not belong together."""


@dataclass(frozen=True, slots=True)
class MeasuredOn:
    """On what samples were measured: it must agree between all that go into one profile."""

    device: str
    dtype: str
    checkpointing: str
    model: tuple[tuple[str, int], ...]
    """Sizes by name: hidden, layers, heads, kv_heads, ffn, vocab; see ``ModelSizes.as_dict``."""
    tensor_parallel: str = PLAIN_TENSOR_PARALLEL
    """How tp ranks hold what it does not cut."""

    def sizes(self) -> dict[str, int]:
        """Return ``model`` as a dictionary."""
        return dict(self.model)


@dataclass(frozen=True, slots=True)
class Sample:
    """One micro-batch measured under one scheme.

    ``layers_ms`` and ``ends_ms``: forward and backward of all ``layers`` decoder layers that were
    run, and of embedding, norm, head and loss, every repetition; ``forward_ms``: of the layers,
    forward only. Of a pipeline all that is of its slowest stage, which runs the layers too, and
    ``ends_ms`` has what stages send to each other. ``saved_bytes``: kept for backward on the
    fullest rank, ``layers_saved_bytes`` of that by the layers. ``oom``: it did not fit, and times
    are empty.

    ``layers_peak_bytes`` and ``ends_peak_bytes``: the device allocator's peak while either ran,
    above parameters and gradients; None where the device has none that is read.
    ``allocated_bytes``, ``reserved_bytes``: with parameters and gradients, all that it had in use
    then and all that it had taken from the device.

    ``turn``: which round of a run over all micro-batches it is of; see ``pooled``.

    ``layers_yardstick_ms`` and ``ends_yardstick_ms``: how long a small fixed piece of work took
    around each repetition, on the slowest rank; see ``steadied``. Empty where it was not read.

    ``layers_cpu_ms``: processor time that a rank's threads had in each repetition of the layers;
    empty where the work is not the processor's, or was not read.
    """

    scheme: Scheme
    role: Role
    lengths: tuple[int, ...]
    layers: int
    layers_ms: tuple[float, ...]
    ends_ms: tuple[float, ...]
    forward_ms: tuple[float, ...]
    saved_bytes: int
    layers_saved_bytes: int
    oom: bool = False
    layers_peak_bytes: int | None = None
    ends_peak_bytes: int | None = None
    turn: int = 0
    layers_yardstick_ms: tuple[float, ...] = ()
    ends_yardstick_ms: tuple[float, ...] = ()
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    layers_cpu_ms: tuple[float, ...] = ()

    @classmethod
    def out_of_memory(
        cls, scheme: Scheme, role: Role, lengths: tuple[int, ...], layers: int, turn: int
    ) -> Sample:
        """Return the sample of a micro-batch that did not fit."""
        none: tuple[float, ...] = ()
        return cls(scheme, role, lengths, layers, none, none, none, 0, 0, oom=True, turn=turn)

    @property
    def tokens(self) -> int:
        """Tokens of the whole micro-batch."""
        return sum(self.lengths)

    def whole_ms(self, layers: int) -> float:
        """Return the time of one stage of a model of ``layers`` layers, the last and slowest.

        Of the repetitions the median. The ends and the transfers between stages once, the layers
        to scale: layers/pp of them.
        """
        share = layers / (self.layers * self.scheme.pp)
        return median(self.layers_ms) * share + median(self.ends_ms)

    def whole_bytes(self, layers: int) -> float:
        """Count bytes that a micro-batch takes on the fullest rank of a model of ``layers`` layers.

        Activations of all layers, also under pp: 1F1B's first stage keeps pp micro-batches of
        layers/pp layers. To these comes what the end of the model takes, as if it were on that
        stage. By the allocator where it was read: above what its layers keep, a rank takes what
        one layer's forward and backward work with, or the end of the model, whichever is more.
        """
        layers_bytes = self.layers_saved_bytes * layers / self.layers
        if self.layers_peak_bytes is None or self.ends_peak_bytes is None:
            return layers_bytes + self.saved_bytes - self.layers_saved_bytes
        return layers_bytes + max(
            self.layers_peak_bytes - self.layers_saved_bytes, self.ends_peak_bytes
        )

    @property
    def spread(self) -> float:
        """Interquartile range of the repetitions over their median."""
        ordered = sorted(self.layers_ms)
        quarter = len(ordered) // 4
        return (ordered[-1 - quarter] - ordered[quarter]) / median(ordered)


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
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise SampleError(f"{path}: cannot be written: {error.strerror}") from None
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
        """Read what is there, and make the file end with a whole line."""
        content = _content(self.path)
        header = _line({"format": FORMAT, **_measured_on_fields(measured_on)})
        if b"\n" not in content:
            if not header.startswith(content):
                raise SampleError(
                    f"{self.path}: has a single line without an end, which is not how samples of "
                    "this device, model and dtype begin; name another file (--samples)"
                )
            self._append(header[len(content) :])
            return
        before, self.samples = _parsed(self.path, content)
        require_same(before, measured_on, str(self.path))
        self._file.truncate(content.rindex(b"\n") + 1)

    def _append(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())


def read_samples(path: Path) -> tuple[MeasuredOn, list[Sample]]:
    """Read a file, which stays as it is: what its samples were measured on, and the samples.

    A last line without an end is left out: a run was killed, or is just writing it. ``SampleError``
    names the line that cannot be read.
    """
    return _parsed(path, _content(path))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SampleError(f"{path}: cannot be read: {error.strerror}") from None


def _parsed(path: Path, content: bytes) -> tuple[MeasuredOn, list[Sample]]:
    whole = content[: content.rfind(b"\n") + 1]
    try:
        lines = whole.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise SampleError(f"{path}: cannot be read: {error}") from None
    if not lines:
        raise SampleError(
            f"{path}: holds no samples: its first line has no end, as of a run that was killed; "
            "the same seqplan profile command goes on with it"
        )
    number = 1
    try:
        measured_on = _measured_on(json.loads(lines[0]))
        samples = []
        for number, line in enumerate(lines[1:], start=2):  # noqa: B007 - for the message
            samples.append(_sample(json.loads(line)))
    except (ValueError, KeyError, TypeError) as error:
        raise SampleError(f"{path}, line {number}: not a sample ({error})") from None
    return measured_on, samples


def require_same(measured_on: MeasuredOn, wanted: MeasuredOn, origin: str) -> None:
    """Raise ``SampleError`` where samples of ``origin`` were measured on something else."""
    for name in ("device", "dtype", "checkpointing", "model", "tensor_parallel"):
        has, wants = getattr(measured_on, name), getattr(wanted, name)
        if has != wants:
            raise SampleError(
                f"{origin}: measured with {name} {_shown(has)}, not {_shown(wants)}; samples of "
                "different settings do not make one profile"
            )


def _shown(value: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in value) if isinstance(value, tuple) else str(value)


def _line(fields: Mapping[str, Any]) -> bytes:
    return (json.dumps(fields) + "\n").encode()


def _measured_on_fields(measured_on: MeasuredOn) -> dict[str, Any]:
    return {
        "device": measured_on.device,
        "dtype": measured_on.dtype,
        "checkpointing": measured_on.checkpointing,
        "model": measured_on.sizes(),
        "tensor_parallel": measured_on.tensor_parallel,
    }


def _measured_on(fields: Mapping[str, Any]) -> MeasuredOn:
    if fields["format"] != FORMAT:
        raise ValueError(f"format {fields['format']}, this version reads {FORMAT}")
    if lacking := [name for name in SIZES if name not in fields["model"]]:
        raise ValueError(f"model lacks {', '.join(lacking)}")
    ModelSizes.of(fields["model"])
    return MeasuredOn(
        fields["device"],
        fields["dtype"],
        fields["checkpointing"],
        tuple(fields["model"].items()),
        fields.get("tensor_parallel", PLAIN_TENSOR_PARALLEL),
    )


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
    )
