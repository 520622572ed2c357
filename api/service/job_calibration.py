"""The calibration error of one job: predicted and measured times of its pipelines, by scheme."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from seqplan.api.service.plan_summary import PlanSummaries, PlanSummary
from seqplan.api.store.tables import measurements, plans
from seqplan.costs.fit.calibration import (
    CalibrationError,
    find_stated_error,
    measure_calibration_error,
)
from seqplan.costs.profile import Profile
from seqplan.plans.scheme import Scheme

Points = list[tuple[float, float]]
"""(predicted ms, measured ms) of pipelines, oldest first."""

Measured = Mapping[int, Mapping[int, float]]
"""Milliseconds by step and rank."""

MOST_POINTS = 1000
"""Points that are kept of each scheme."""


@dataclass(frozen=True)
class JobCalibration:
    """The calibration error of a job by scheme, over the measured steps ``first`` to ``last``.

    ``points``: (predicted ms, measured ms) of the latest ``MOST_POINTS`` measured pipelines of each
    scheme, oldest first.
    ``pipelines``: all with work in these steps, of which ``measurable`` have one stage and their
    ranks to themselves, of which ``measured`` were measured on all of their ranks.
    """

    profile: str
    first: int | None
    last: int | None
    steps: int
    pipelines: int
    measurable: int
    measured: int
    schemes: tuple[CalibrationError, ...]
    points: dict[Scheme, Points]


def job_calibration(
    connection: Connection,
    job: str,
    steps: list[int],
    profile: Profile,
    summaries: PlanSummaries,
) -> JobCalibration:
    """Compare predictions of these steps, ascending, with measurements."""
    measured = measurements.read_measurements_since(connection, job, steps[0]) if steps else {}
    summary_of = summaries.of(
        plans.digests(connection, job, measured),
        lambda missing: plans.plan_lines(connection, job, missing),
    )
    points = _points(measured, summary_of)
    schemes = sorted(
        {pipeline.scheme for plan in summary_of.values() for pipeline in plan.measurable}
    )
    return JobCalibration(
        profile=profile.name,
        first=min(measured, default=None),
        last=max(measured, default=None),
        steps=len(measured),
        pipelines=sum(plan.pipelines for plan in summary_of.values()),
        measurable=sum(len(plan.measurable) for plan in summary_of.values()),
        measured=sum(map(len, points.values())),
        schemes=tuple(_of_scheme(scheme, points.get(scheme, []), profile) for scheme in schemes),
        points={scheme: latest[-MOST_POINTS:] for scheme, latest in points.items()},
    )


def _points(measured: Measured, summary_of: Mapping[int, PlanSummary]) -> dict[Scheme, Points]:
    """Pair what each measured pipeline was predicted to take with what it took, by scheme."""
    points: dict[Scheme, Points] = {}
    for step, by_rank in measured.items():
        for pipeline in summary_of[step].measurable if step in summary_of else ():
            took_ms = pipeline.slowest_rank_ms(by_rank)
            if took_ms is not None and pipeline.predicted_ms > 0:
                points.setdefault(pipeline.scheme, []).append((pipeline.predicted_ms, took_ms))
    return points


def _of_scheme(scheme: Scheme, points: Points, profile: Profile) -> CalibrationError:
    predicted, took = [point[0] for point in points], [point[1] for point in points]
    entries = [entry for entry in profile.schemes if entry.scheme == scheme]
    # Errors that several degrees of expert parallelism state are of other coefficients.
    stated = find_stated_error(entries[0]) if len(entries) == 1 else None
    return measure_calibration_error(scheme, predicted, took, stated)
