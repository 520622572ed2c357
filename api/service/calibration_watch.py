"""Whether the profile of each job still holds: on request, in the log and in metrics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Container, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from seqplan.api.service.periodic_thread import PeriodicThread
from seqplan.api.service.plan_summary import PlanSummaries, PlanSummary
from seqplan.api.store.errors import StoreUnavailable
from seqplan.api.store.lru import Lru
from seqplan.api.store.rows import JobRow, ProposalRow, get
from seqplan.api.store.store import Store
from seqplan.api.store.tables import jobs, measurements, plans
from seqplan.api.store.tables.proposals import ready_document
from seqplan.costs.fit.calibration import (
    CalibrationError,
    find_stated_error,
    measure_calibration_error,
)
from seqplan.costs.profile import Profile
from seqplan.plans.scheme import Scheme

WINDOW = 200
"""Measured steps that the log and the metrics look back on."""

EVERY_S = 15.0
"""How often the watch looks by itself."""

_PROFILES = 64
_JUDGEMENTS = 16
"""Cached evaluations, so that polling pages cost nothing without new measurements."""

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


_State = tuple[list[int], tuple[int, float]]

_log = logging.getLogger("seqplan.calibration")


class CalibrationWatch(PeriodicThread):
    """Looks at the jobs of a store for as long as it is started. May be used from threads."""

    def __init__(self, store: Store, summaries: PlanSummaries, every_s: float = EVERY_S) -> None:
        failure = "a look at the calibration error of the jobs ended"
        super().__init__("calibration watch", every_s, _log, failure)
        self._store = store
        self._summaries = summaries
        self._profiles: Lru[str, Profile] = Lru(_PROFILES)
        self._judged: Lru[tuple[str, int], tuple[_State, JobCalibration]] = Lru(_JUDGEMENTS)
        self._looked: dict[str, int | None] | None = None
        self._latest: dict[str, tuple[CalibrationError, ...]] = {}
        self._warned: set[tuple[str, Scheme]] = set()
        self._lock = threading.Lock()

    def faults(self) -> list[str]:
        """Return a line if the thread has ended unexpectedly."""
        line = "the calibration error of jobs is watched no more; start the service again"
        return [line] if self.ended else []

    def look(self) -> None:
        """Evaluate the jobs measured since the last look, and log changes.

        The first look takes up unfinished jobs only: others were logged before.
        """
        with self._store.reading() as connection:
            last = {
                job: (state, measurements.last_measured_step(connection, job))
                for job, state in jobs.states(connection).items()
            }
        first, looked = self._looked is None, self._looked or {}
        self._looked = {job: step for job, (_, step) in last.items()}
        self._forget_all_but(last)
        for job, (state, step) in last.items():
            if self._stopping.is_set():
                return
            if step is None or step == looked.get(job) or (first and state != "planning"):
                continue
            try:
                with self._store.reading() as connection:
                    if get(connection, JobRow, job) is not None:  # removed just now
                        self.calibration_of(connection, job)
            except StoreUnavailable:
                raise
            except Exception:  # one job's error must not block the others
                _log.exception("job %s: its calibration error cannot be computed", job)

    def _forget_all_but(self, jobs: Container[str]) -> None:
        """Drop the warnings of removed jobs."""
        with self._lock:
            self._latest = {job: errors for job, errors in self._latest.items() if job in jobs}
            self._warned = {key for key in self._warned if key[0] in jobs}
        self._judged.drop(lambda key: key[0] not in jobs)

    def profile(self, connection: Connection, proposal: str) -> Profile:
        """Return the profile that a proposal of the store carries."""

        def read() -> Profile:
            row = get(connection, ProposalRow, proposal)
            assert row is not None  # no job begins without it, and it stays while a job uses it
            return ready_document(row).profile

        return self._profiles.find(proposal, read)

    def calibration_of(
        self, connection: Connection, job: str, steps: int = WINDOW
    ) -> JobCalibration:
        """Return the calibration error over the last ``steps`` measured steps of a job.

        Over the default window it equals the log and the metrics.
        """
        row = get(connection, JobRow, job)
        assert row is not None
        profile = self.profile(connection, row.proposal)
        looked_at = measurements.latest_measured_steps(connection, job, steps)
        times = (0, 0.0)
        if looked_at:
            times = measurements.measurements_state(connection, job, looked_at[0])
        earlier = self._judged.get((job, steps))
        if earlier is not None and earlier[0] == (looked_at, times):
            return earlier[1]
        errors = job_calibration(connection, job, looked_at, profile, self._summaries)
        self._judged.put((job, steps), ((looked_at, times), errors))
        if steps == WINDOW:
            self._tell(job, errors.schemes)
        return errors

    def _tell(self, job: str, errors: tuple[CalibrationError, ...]) -> None:
        """Log a line when a scheme leaves its limit or returns into it."""
        with self._lock:
            self._latest[job] = errors
            for scheme_calibration in errors:
                scheme, warning = scheme_calibration.scheme, scheme_calibration.warning
                warned = (job, scheme) in self._warned
                if warning is not None and not warned:
                    self._warned.add((job, scheme))
                    _log.warning("job %s: %s", job, warning)
                elif warning is None and warned:
                    self._warned.discard((job, scheme))
                    _log.warning("job %s: %s is within its profile's error again", job, scheme)

    def is_miscalibrated(self, job: str) -> bool:
        """Whether a scheme's error has left its limit, as the last look found."""
        with self._lock:
            return any(calibration.warning is not None for calibration in self._latest.get(job, ()))

    def latest(self) -> list[tuple[str, CalibrationError]]:
        """Return each job with its schemes' calibration errors at the last look."""
        with self._lock:
            return [
                (job, scheme_calibration)
                for job, errors in sorted(self._latest.items())
                for scheme_calibration in errors
                if scheme_calibration.recent is not None
            ]


def job_calibration(
    connection: Connection, job: str, steps: list[int], profile: Profile, summaries: PlanSummaries
) -> JobCalibration:
    """Compare predictions of these steps, ascending, with measurements."""
    measured = measurements.read_measurements_since(connection, job, steps[0]) if steps else {}
    summary_of = summaries.of(connection, job, plans.digests(connection, job, measured))
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
