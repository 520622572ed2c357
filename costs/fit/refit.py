"""Step times that come back from training: a profile's calibration error, and its refit.

A measurement is the time that a rank spent on its micro-batches in a step. It counts for a pipeline
where the rank ran nothing else in that step: then the slowest rank of the pipeline gives its time,
Σ(a·l² + b·l) + V·c. Pipelines of several stages overlap their micro-batches, which this form does
not describe; they are left out.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seqplan.costs.fit.latency_fit import Errors, Observed, features, fit_latency, times
from seqplan.costs.latency import Latency
from seqplan.costs.profile import Profile
from seqplan.plans.plan import Plan
from seqplan.plans.scheme import Scheme

LEAST_TO_SCALE, LEAST_TO_FIT = 8, 40
"""Pipelines measured before a scheme is scaled by one factor, and before all three are fitted."""

DISAGREEMENT = 0.1
"""Factors of measured schemes that are further apart than this disagree."""


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

    ``predicted_ms``: Σ of its micro-batches' costs, the profile's prediction.
    """

    scheme: Scheme
    ranks: Sequence[int]
    lengths: tuple[int, ...]
    micro_batches: int
    predicted_ms: float

    def slowest_rank_ms(self, by_rank: Mapping[int, float]) -> float | None:
        """Return the time of its slowest rank (ms); None if not all of them were measured."""
        if any(rank not in by_rank for rank in self.ranks):
            return None
        return max(by_rank[rank] for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class Refitted:
    """Measured errors of one scheme, before and after the refit.

    ``before``: the profile's errors on all of them; ``after``: the new coefficients' errors on the
    half that they were not made from. ``how``: ``kept``, ``scaled`` or ``fitted``, and why; or
    ``extrapolated``, by the factor of the measured schemes.
    """

    scheme: Scheme
    before: Errors
    after: Errors
    how: str
    reason: str
    latency: Latency


@dataclass(frozen=True, slots=True)
class Observations:
    """The pipelines that were measured on all of their ranks, by scheme, in plan order.

    ``rank_times``: how many measurements those are; ``unplanned``: how many are of steps without a
    plan, ``unplanned_steps``, ascending.
    """

    by_scheme: Mapping[Scheme, Sequence[Observed]]
    rank_times: int
    unplanned: int
    unplanned_steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommonFactor:
    """How much slower the measured schemes are than predicted, as one factor.

    ``factor``: the geometric mean over them of the new coefficients' time over the old ones', for
    the micro-batches measured; ``least`` and ``most`` of them.
    """

    factor: float
    least: float
    most: float

    @property
    def disagreement(self) -> str:
        """A clause if the schemes disagree; empty if they do not."""
        if self.most / self.least - 1 <= DISAGREEMENT:
            return ""
        return f", which disagree ({self.least:.3f} to {self.most:.3f})"


@dataclass(frozen=True, slots=True)
class RefittedProfile:
    """Results for a profile's schemes: the measured ones first, then all others.

    ``common``: the factor of the others; None if no measured scheme was corrected, and
    then ``schemes`` are the measured ones alone.
    """

    schemes: tuple[Refitted, ...]
    common: CommonFactor | None


def read_measurements(path: Path) -> list[Measurement]:
    """Read JSON Lines of ``{"step":…,"rank":…,"measured_ms":…}``.

    ``MeasurementError`` names a bad line.
    """
    measurements = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MeasurementError(f"{path}: cannot be read: {reason}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            measurements.append(measurement(fields))
        except (ValueError, KeyError, TypeError) as error:
            wanted = '{"step":0,"rank":0,"measured_ms":812.5}'
            raise MeasurementError(
                f"{path}, line {number}: must be {wanted}, ({error}) in {line[:60]!r}"
            ) from None
    if not measurements:
        raise MeasurementError(f"{path}: holds no measurements")
    return measurements


def measurement(fields: Mapping[str, Any]) -> Measurement:
    """Read a measurement from its JSON fields; ``KeyError``, ``TypeError`` or ``ValueError``."""
    step, rank, measured_ms = fields["step"], fields["rank"], fields["measured_ms"]
    if type(step) is not int or type(rank) is not int or isinstance(measured_ms, bool):
        raise TypeError("step and rank are whole numbers, measured_ms is a time")
    if not 0 < float(measured_ms) < float("inf"):
        raise ValueError(f"measured_ms {measured_ms} is not a positive time")
    return Measurement(step, rank, float(measured_ms))


def measurable(plan: Plan) -> tuple[Measurable, ...]:
    """Return the one-stage pipelines with work that share no ranks, in plan order."""
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
        )
        for pipeline in plan.pipelines
        if pipeline.micro_batches
        and pipeline.scheme.pp == 1
        and all(busy[rank] == 1 for rank in pipeline.ranks)
    )


def match_measurements(plans: Iterable[Plan], measurements: Iterable[Measurement]) -> Observations:
    """Match measurements with the plans' pipelines, and count those of steps without a plan.

    The last measurement of a rank and step counts. ``MeasurementError`` for a rank that the step's
    plan does not have.
    """
    by_step: dict[int, dict[int, float]] = {}
    for measured in measurements:
        by_step.setdefault(measured.step, {})[measured.rank] = measured.measured_ms
    by_scheme: dict[Scheme, list[Observed]] = {}
    rank_times = 0
    unplanned = set(by_step)
    for plan in plans:
        by_rank = by_step.get(plan.step)
        if by_rank is None:
            continue
        unplanned.discard(plan.step)
        if foreign := [rank for rank in by_rank if not 0 <= rank < plan.world_size]:
            raise MeasurementError(
                f"step {plan.step}: measured on rank {foreign[0]}, its plan has {plan.world_size}"
            )
        for pipeline in measurable(plan):
            measured_ms = pipeline.slowest_rank_ms(by_rank)
            if measured_ms is not None:
                rank_times += len(pipeline.ranks)
                by_scheme.setdefault(pipeline.scheme, []).append(
                    Observed(pipeline.lengths, measured_ms, micro_batches=pipeline.micro_batches)
                )
    steps = tuple(sorted(unplanned))
    return Observations(by_scheme, rank_times, sum(len(by_step[step]) for step in steps), steps)


def refit(latency: Latency, scheme: Scheme, samples: Sequence[Observed]) -> Refitted:
    """Find new coefficients of a scheme where the measurements bear them, and better ones only.

    Every second sample is held out. All three coefficients are fitted if there are enough
    samples and that predicts the held-out ones better than one common factor does.
    """
    before = _errors(latency, samples)
    few = Errors(0, None, None, None)
    if len(samples) < LEAST_TO_SCALE:
        reason = f"{len(samples)} pipelines measured, {LEAST_TO_SCALE} are needed"
        return Refitted(scheme, before, few, "kept", reason, latency)
    made_from, held_out = samples[::2], samples[1::2]
    factor = float(np.median(times(made_from) / _predict(latency, made_from)))
    scaled = Latency(latency.a * factor, latency.b * factor, latency.c * factor)
    candidates = [("scaled", f"all coefficients times {factor:.3f}", scaled)]
    if len(samples) >= LEAST_TO_FIT:
        fitted = fit_latency(made_from, held_out, held_out).latency
        candidates.append(("fitted", f"to {len(made_from)} pipelines", fitted))
    candidates.append(("kept", "predicts the held-out half best", latency))
    how, reason, best = min(candidates, key=lambda candidate: _mean_error(candidate[2], held_out))
    return Refitted(scheme, before, _errors(best, held_out), how, reason, best)


def refit_profile(
    profile: Profile, by_scheme: Mapping[Scheme, Sequence[Observed]]
) -> RefittedProfile:
    """Correct the measured schemes by their samples, and scale all others as those.

    A device that is slower is slower for every scheme: coefficients that were merely not measured
    would look faster than those that were. So schemes with too few samples are scaled by the common
    factor of the others, the confirmed ones among them, unless their few samples are predicted
    better without. ``by_scheme``: of schemes that the profile has. ``MeasurementError`` for a
    profile of several recomputation modes, of which a pipeline's time is a mixture.
    """
    if len(profile.modes) > 1:
        raise MeasurementError(
            f"profile {profile.name}: refit of several recomputation modes is not supported. Plan "
            "with a profile of one (seqplan profile derive --recompute MODE)"
        )
    measured: dict[Scheme, Refitted] = {}
    factors = []
    for scheme, samples in sorted(by_scheme.items()):
        latency = profile.by_scheme[scheme].latency
        measured[scheme] = result = refit(latency, scheme, samples)
        if len(samples) >= LEAST_TO_SCALE:
            after, before = (_predict(one, samples).sum() for one in (result.latency, latency))
            factors.append(float(after / before))
    if all(result.how == "kept" for result in measured.values()):
        return RefittedProfile(tuple(measured.values()), None)
    mean = math.exp(math.fsum(map(math.log, factors)) / len(factors))
    common = CommonFactor(mean, min(factors), max(factors))
    others = [entry.scheme for entry in profile.schemes if entry.scheme not in measured]
    schemes = [
        measured[scheme]
        if len(by_scheme.get(scheme, ())) >= LEAST_TO_SCALE
        else _extrapolate(
            profile.by_scheme[scheme].latency, scheme, by_scheme.get(scheme, ()), common
        )
        for scheme in (*measured, *others)
    ]
    return RefittedProfile(tuple(schemes), common)


def _extrapolate(
    latency: Latency, scheme: Scheme, samples: Sequence[Observed], common: CommonFactor
) -> Refitted:
    """Scale a scheme as the measured ones, unless its few samples are predicted better without."""
    few = f"{len(samples)} pipelines measured, {LEAST_TO_SCALE} are needed"
    if not samples:
        few = "not measured"
    factor = common.factor
    scaled = Latency(latency.a * factor, latency.b * factor, latency.c * factor)
    before = _errors(latency, samples)
    if samples and _mean_error(latency, samples) < _mean_error(scaled, samples):
        reason = f"{few}; the measured schemes' factor of {factor:.3f} predicts them worse"
        return Refitted(scheme, before, before, "kept", reason, latency)
    reason = f"scaled by {factor:.3f}, as the measured schemes{common.disagreement}; {few}"
    return Refitted(scheme, before, _errors(scaled, samples), "extrapolated", reason, scaled)


def write_refit(profile: Profile, results: Sequence[Refitted], source: str) -> dict[str, Any]:
    """Return the profile with the new coefficients; ``source`` is added to its source.

    Schemes that were kept stay as they are, digits included. Extrapolated ones keep their origin
    and ``fit`` states the correction; the errors that it stated before were of other coefficients.
    """
    document: dict[str, Any] = copy.deepcopy(dict(profile.document))
    changed = {result.scheme: result for result in results if result.how != "kept"}
    for fields in document["schemes"]:
        degrees = {axis: fields.get(axis, 1) for axis in ("tp", "pp", "ulysses", "ring")}
        result = changed.get(Scheme(**degrees))
        if result is None:
            continue
        latency = result.latency
        fields.update(a=latency.a, b=latency.b, c=latency.c)
        if result.how == "extrapolated":
            fields["fit"] = {"refitted": f"extrapolated: {result.reason}"}
            continue
        fields["origin"] = "measured"
        fields["fit"] = {
            "refitted": f"{result.how}: {result.reason}",
            "held_out": {
                "samples": result.after.samples,
                "median": result.after.median,
                "p90": result.after.p90,
                "largest": result.after.largest,
            },
        }
    document["source"] = f"{profile.source}; {source}"
    return document


def _predict(latency: Latency, samples: Sequence[Observed]) -> Any:
    return features(samples) @ np.array([latency.a, latency.b, latency.c])


def _errors(latency: Latency, samples: Sequence[Observed]) -> Errors:
    return Errors.from_times(_predict(latency, samples), times(samples))


def _mean_error(latency: Latency, samples: Sequence[Observed]) -> float:
    """Return the median error, which one disturbed step does not decide."""
    return float(np.median(np.abs(_predict(latency, samples) / times(samples) - 1)))
