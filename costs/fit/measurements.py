"""Step times that come back from training, and the pipelines of plans that they measure.

A measurement is the time that a rank spent on its micro-batches in a step. It counts for a pipeline
where the rank ran nothing else in that step: then the slowest rank of the pipeline gives its time,
Σ(a·l² + b·l) + V·c. Pipelines of several stages overlap their micro-batches, which this form does
not describe; they are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from seqplan.costs.fit.latency_fit import Observed
from seqplan.costs.latency import Latency
from seqplan.plans.experts import holds_whole_blocks
from seqplan.plans.format.canonical import parse_json
from seqplan.plans.format.fields import FieldReader, decode_text
from seqplan.plans.plan import Plan, PlannedPipeline
from seqplan.plans.scheme import Scheme

_FIELDS = frozenset({"step", "rank", "measured_ms"})
_EXAMPLE = '{"step":0,"rank":0,"measured_ms":812.5}'

LengthsByMode = Mapping[str, tuple[tuple[int, ...], ...]]
"""Lengths (tokens) of the sequences of each micro-batch, by recomputation mode."""


class MeasurementError(ValueError):
    """Measurements that cannot be read or do not belong to the plans."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Milliseconds that ``rank`` spent on its micro-batches in ``step``."""

    step: int
    rank: int
    measured_ms: float


@dataclass(frozen=True, slots=True)
class Measurable:
    """A pipeline of a plan that step times of its ranks measure.

    ``predicted_ms``: Σ of its micro-batches' costs, the profile's prediction; ``by_mode``: lengths
    by recomputation mode and micro-batch, empty in a profile of one.
    """

    scheme: Scheme
    ranks: Sequence[int]
    lengths: tuple[int, ...]
    micro_batches: int
    predicted_ms: float
    by_mode: LengthsByMode = field(default_factory=dict)

    def slowest_rank_ms(self, by_rank: Mapping[int, float]) -> float | None:
        """Return the time of its slowest rank (ms); None if not all of them were measured."""
        if any(rank not in by_rank for rank in self.ranks):
            return None
        return max(by_rank[rank] for rank in self.ranks)

    def observe(self, measured_ms: float) -> Observed:
        """Return the pipeline as a sample of its scheme."""
        if not self.by_mode:
            return Observed(self.lengths, measured_ms, micro_batches=self.micro_batches)
        return MixedPipeline(
            self.lengths, measured_ms, micro_batches=self.micro_batches, by_mode=self.by_mode
        )


@dataclass(frozen=True, slots=True)
class MixedPipeline(Observed):
    """A pipeline whose micro-batches have recomputation modes, see ``Measurable.by_mode``."""

    by_mode: LengthsByMode = field(default_factory=dict)

    def predict_ms(self, latencies: Mapping[str, Latency]) -> float:
        """Compute the time of its micro-batches, each in its mode (ms)."""
        return math.fsum(
            latencies[mode].micro_batch_ms(lengths)
            for mode, micro_batches in self.by_mode.items()
            for lengths in micro_batches
        )


@dataclass(frozen=True, slots=True)
class Observations:
    """The pipelines that were measured on all of their ranks, by scheme, in plan order.

    ``rank_times``: how many measurements those are; ``incomplete``: how many are of pipelines that
    other ranks did not measure; ``unmeasurable``: of pipelines that no times measure;
    ``unplanned``: of steps without a plan, ``unplanned_steps``, ascending; ``expert_parallel``: the
    degree of the plans.
    """

    by_scheme: Mapping[Scheme, Sequence[Observed]]
    rank_times: int
    unplanned: int
    unplanned_steps: tuple[int, ...]
    incomplete: int = 0
    unmeasurable: int = 0
    expert_parallel: int = 1


def read_measurements(path: Path, note: Callable[[str], None] | None = None) -> list[Measurement]:
    """Read JSON Lines of ``{"step":…,"rank":…,"measured_ms":…}``.

    ``MeasurementError`` names a bad line. A last line that is cut, as a killed trainer leaves it,
    is skipped, and ``note`` called with a sentence on it.
    """
    measurements: list[Measurement] = []
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = error.strerror
        raise MeasurementError(f"{path}: cannot be read: {reason}. Check the path") from None
    lines = decode_text(path, content, MeasurementError).splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        reader = _MeasurementReader(f"{path}, line {number}", strict=False)
        try:
            fields = parse_json(line, finite=False)
        except ValueError as error:
            if number == len(lines) and not content.endswith(b"\n") and measurements:
                if note is not None:
                    note(f"{path}, line {number}: is cut, and left out")
                break
            reader.fail("", f"is no JSON: {error}")
        measurements.append(reader.read(fields))
    if not measurements:
        raise MeasurementError(f"{path}: holds no measurements. Name at least one")
    return measurements


class _MeasurementReader(FieldReader):
    """Reads a line of measurements."""

    error = MeasurementError

    def read(self, raw: Any) -> Measurement:
        self.fields(raw, "", _FIELDS)
        step, rank = (self.integer(raw, name, "") for name in ("step", "rank"))
        measured_ms = self.number(raw, "measured_ms", "")
        if not measured_ms:
            self.fail("measured_ms", "must be a time above 0")
        return Measurement(step, rank, measured_ms)

    def fail(self, place: str, problem: str) -> NoReturn:
        super().fail(place, f"{problem}. Repair the line, as {_EXAMPLE}")


def measurable(plan: Plan) -> tuple[Measurable, ...]:
    """Return the one-stage pipelines with work that share no ranks, without slow ones.

    Nor do their ranks share experts with others, whose work their times would contain.
    """
    busy: dict[int, int] = {}
    for pipeline in plan.pipelines:
        for rank in pipeline.ranks:
            busy[rank] = busy.get(rank, 0) + 1
    return tuple(
        Measurable(
            pipeline.scheme,
            pipeline.ranks,
            tuple(
                plan.lengths[position]
                for batch in pipeline.micro_batches
                for position in batch.sequences
            ),
            len(pipeline.micro_batches),
            math.fsum(batch.cost_ms for batch in pipeline.micro_batches),
            _group_by_mode(plan, pipeline),
        )
        for pipeline in plan.pipelines
        if pipeline.micro_batches
        and pipeline.scheme.pp == 1
        and pipeline.slowdown == 1
        and not plan.loads
        and not plan.shapes
        and all(busy[rank] == 1 for rank in pipeline.ranks)
        and holds_whole_blocks(pipeline.scheme, pipeline.ranks, plan.expert_parallel)
    )


def _group_by_mode(plan: Plan, pipeline: PlannedPipeline) -> LengthsByMode:
    grouped: dict[str, list[tuple[int, ...]]] = {}
    for batch in pipeline.micro_batches:
        if batch.recompute is not None:
            lengths = tuple(plan.lengths[position] for position in batch.sequences)
            grouped.setdefault(batch.recompute, []).append(lengths)
    return {mode: tuple(lengths) for mode, lengths in grouped.items()}


def match_measurements(plans: Iterable[Plan], measurements: Iterable[Measurement]) -> Observations:
    """Match measurements with the plans' pipelines, and count those that match none.

    The last measurement of a rank and step counts. ``MeasurementError`` for a rank that the step's
    plan does not have.
    """
    by_step: dict[int, dict[int, float]] = {}
    for measured in measurements:
        by_step.setdefault(measured.step, {})[measured.rank] = measured.measured_ms
    by_scheme: dict[Scheme, list[Observed]] = {}
    degrees: set[int] = set()
    planned = rank_times = incomplete = 0
    unplanned = set(by_step)
    for plan in plans:
        by_rank = by_step.get(plan.step)
        if by_rank is None:
            continue
        unplanned.discard(plan.step)
        degrees.add(plan.expert_parallel)
        if len(degrees) > 1:
            raise MeasurementError(
                f"step {plan.step}: expert_parallel is {plan.expert_parallel}, of steps before it "
                "another. Give plans of one degree"
            )
        if foreign := [rank for rank in by_rank if not 0 <= rank < plan.world_size]:
            raise MeasurementError(
                f"step {plan.step}: measured on rank {foreign[0]}, its plan has "
                f"{plan.world_size}. Name the times of these plans"
            )
        planned += len(by_rank)
        for pipeline in measurable(plan):
            measured_ms = pipeline.slowest_rank_ms(by_rank)
            if measured_ms is None:
                incomplete += sum(rank in by_rank for rank in pipeline.ranks)
            else:
                rank_times += len(pipeline.ranks)
                by_scheme.setdefault(pipeline.scheme, []).append(pipeline.observe(measured_ms))
    steps = tuple(sorted(unplanned))
    left_out = sum(len(by_step[step]) for step in steps)
    return Observations(
        by_scheme,
        rank_times,
        left_out,
        steps,
        incomplete,
        planned - rank_times - incomplete,
        max(degrees, default=1),
    )
