"""The records of a sample file as JSON fields, each checked by name, type and range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, NoReturn

from seqplan.costs.architecture import NAMES as ARCHITECTURE
from seqplan.costs.fit.samples import (
    DTYPE_BYTES,
    PLAIN_TENSOR_PARALLEL,
    ROLES,
    SEQUENCE_PARALLEL,
    MeasuredOn,
    Sample,
    SampleError,
)
from seqplan.costs.fit.sync_samples import SyncSample
from seqplan.costs.latency import MOST_MS
from seqplan.costs.model_sizes import SIZES, ModelSizes
from seqplan.plans.format.fields import FieldReader, shown
from seqplan.plans.recomputation import split_mode
from seqplan.plans.scheme import Scheme

FORMAT = 1

Record = MeasuredOn | Sample | SyncSample

_SCHEME = frozenset(field.name for field in fields(Scheme))
_LEAST = {"layers": 1, "expert_parallel": 1, "tp": 1, "pp": 1, "ranks": 1}
"""Least values of whole numbers, others than 0."""

_OF_HOST = ("layers_cpu_ms", "layers_host_ms")
"""Times that may be 0."""

_AS_MANY = {
    "layers_yardstick_ms": "layers_ms",
    "ends_yardstick_ms": "ends_ms",
    "experts_yardstick_ms": "experts_ms",
    **dict.fromkeys(_OF_HOST, "layers_ms"),
}
"""Times of which there are none, or as many as of others."""

_MODEL = frozenset({*ARCHITECTURE, *(field.name for field in fields(ModelSizes))})
_CHOICES: dict[str, tuple[str, ...]] = {
    "role": ROLES,
    "dtype": tuple(DTYPE_BYTES),
    "tensor_parallel": (SEQUENCE_PARALLEL, PLAIN_TENSOR_PARALLEL),
}


def list_fields(record: Record) -> dict[str, Any]:
    """Return a record's fields as JSON has them, without those that have their default."""
    listed: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if field.default is not MISSING and value == field.default:
            continue
        if field.name == "model":
            value = dict(value)
        elif isinstance(value, Scheme):
            value = value.as_dict()
        listed[field.name] = list(value) if isinstance(value, tuple) else value
    return listed


class SampleReader(FieldReader):
    """Reads the lines of a sample file."""

    error = SampleError
    format = "a sample"

    def fail(self, place: str, problem: str) -> NoReturn:
        super().fail(place, f"{problem}. Remove or repair the line")

    def read_setting(self, raw: Any) -> MeasuredOn:
        """Read the first line: on what all samples were measured."""
        if isinstance(raw, dict) and raw.get("format", FORMAT) != FORMAT:
            problem = f"is {shown(raw['format'])}, this version reads {FORMAT}"
            super().fail("format", f"{problem}. Measure again with this version")
        values = self._values(raw, MeasuredOn, frozenset({"format"}))
        try:
            split_mode(values["recompute"])
        except ValueError as error:
            self.fail("recompute", str(error))
        return MeasuredOn(**values)

    def read_sample(self, raw: Any) -> Sample:
        """Read a measured micro-batch."""
        sample = Sample(**self._values(raw, Sample))
        if not sample.lengths:
            self.fail("lengths", "is empty")
        if not sample.oom:
            self._require_times(sample, ("layers_ms", "ends_ms", "forward_ms"))
        for name, other in _AS_MANY.items():
            times, wanted = getattr(sample, name), len(getattr(sample, other))
            if times and len(times) != wanted:
                self.fail(name, f"has {len(times)} times, {other} {wanted}")
        return sample

    def read_sync(self, raw: Any) -> SyncSample:
        """Read a measured sync."""
        sync = SyncSample(**self._values(raw, SyncSample))
        self._require_times(sync, ("sync_ms", "optimizer_ms"))
        return sync

    def _values(
        self, raw: Any, record: type[Record], others: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """Read the fields of a record, as their types have it."""
        needed = {field.name for field in fields(record) if field.default is MISSING}
        self.fields(raw, "", others | needed, _names(record))
        return {
            field.name: self._value(raw, field.name, str(field.type))
            for field in fields(record)
            if field.name in raw
        }

    def _value(self, raw: dict[str, Any], name: str, kind: str) -> Any:
        if name == "model":
            return self._model(raw[name])
        if name in _CHOICES:
            return self.choice(raw, name, "", _CHOICES[name])
        least = _LEAST.get(name, 0)
        match kind:
            case "Scheme":
                self.fields(raw[name], f".{name}", _SCHEME)
                degrees = {axis: self.integer(raw[name], axis, f".{name}", 1) for axis in _SCHEME}
                return Scheme(**degrees)
            case "str":
                return self.text(raw, name, "")
            case "bool":
                return self.boolean(raw, name, "")
            case "int":
                return self.integer(raw, name, "", least)
            case "int | None":
                return self.integer_or_null(raw, name, "", least)
            case "tuple[int, ...]":
                return self.integers(raw, name, "", 1)
        times = tuple(self.numbers(self.items(raw, name, ""), f".{name}"))
        if (name not in _OF_HOST and not all(times)) or max(times, default=0) > MOST_MS:
            self.fail(name, f"must be positive times of at most {MOST_MS:g} ms")
        return times

    def _model(self, raw: Any) -> tuple[tuple[str, int], ...]:
        self.fields(raw, ".model", frozenset(SIZES), _MODEL)
        for name in SIZES:
            self.integer(raw, name, ".model", 1)
        try:
            ModelSizes.from_mapping(raw)
        except (TypeError, ValueError) as error:
            self.fail("", str(error))
        return tuple(raw.items())

    def _require_times(self, record: Record, names: Sequence[str]) -> None:
        for name in names:
            if not getattr(record, name):
                self.fail(name, "is empty: it must be positive times")


def _names(record: type[Record]) -> frozenset[str]:
    return frozenset(field.name for field in fields(record))
