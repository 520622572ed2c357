"""Whether the profile of each job still holds: asked for, told in the log, counted for scrapers."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection, select

from seqplan.api.service.plan_summary import PlanSummaries
from seqplan.api.store import progress, schema
from seqplan.api.store.catalogue import get
from seqplan.api.store.errors import StoreUnavailable
from seqplan.api.store.store import Store
from seqplan.planner.proposal.document import ProposalDocument
from seqplan.plans.scheme import Scheme
from seqplan.profiler.fit.drift import Drift, drift, stated_error
from seqplan.profiler.profile import Profile

WINDOW = 200
"""Measured steps that the log and the metrics look back on."""

MOST_POINTS = 1000

EVERY_S = 15.0
"""How often the watch looks by itself."""

_PROFILES = 64
_JUDGEMENTS = 16
"""Kept, so that pages which ask every few seconds cost nothing while nothing is measured."""

_State = tuple[list[int], tuple[int, float]]

_GAUGES: tuple[tuple[str, str, Callable[[Drift], float | None]], ...] = (
    ("error", "Median of |measured - predicted| / predicted, latest.", lambda each: each.recent),
    ("bias", "Median of measured / predicted - 1, latest.", lambda each: each.bias),
    ("limit", "What the error may be by the profile.", lambda each: each.limit),
    ("warning", "1 where the error has left its limit.", lambda each: float(bool(each.warning))),
)

_log = logging.getLogger("seqplan.drift")


@dataclass(frozen=True)
class JobDrift:
    """The drift of a job by scheme, over the measured steps ``first`` to ``last``.

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
    schemes: tuple[Drift, ...]
    points: dict[Scheme, list[tuple[float, float]]]


class DriftWatch:
    """Looks at the jobs of a store for as long as it is started. May be used from threads."""

    def __init__(self, store: Store, summaries: PlanSummaries) -> None:
        self._store = store
        self._summaries = summaries
        self._profiles: OrderedDict[str, Profile] = OrderedDict()
        self._judged: OrderedDict[tuple[str, int], tuple[_State, JobDrift]] = OrderedDict()
        self._looked: dict[str, int | None] | None = None
        self._latest: dict[str, tuple[Drift, ...]] = {}
        self._warned: set[tuple[str, Scheme]] = set()
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, every_s: float = EVERY_S) -> None:
        """Look now and every ``every_s`` seconds, in a thread of its own, until stopped."""

        def run() -> None:
            while not self._ending.is_set():
                with suppress(StoreUnavailable):  # the next look may find it again
                    self.look()
                self._ending.wait(every_s)

        self._ending.clear()
        self._thread = threading.Thread(target=run, name="drift watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """Judge the jobs that were measured since the last look, and tell what has changed.

        The first look takes up unfinished jobs only: what was told of others is long told.
        """
        with self._store.reading() as connection:
            states = select(schema.jobs.c.id, schema.jobs.c.state)
            last = {
                str(job): (str(state), progress.last_measured_step(connection, job))
                for job, state in connection.execute(states)
            }
        first, looked = self._looked is None, self._looked or {}
        self._looked = {job: step for job, (_, step) in last.items()}
        self._forget_all_but(last)
        for job, (state, step) in last.items():
            if self._ending.is_set():
                return
            if step is None or step == looked.get(job) or (first and state != "planning"):
                continue
            try:
                with self._store.reading() as connection:
                    if get(connection, schema.jobs, job) is not None:  # removed just now
                        self.judge(connection, job)
            except StoreUnavailable:
                raise
            except Exception:  # a job that cannot be judged must not keep the others from it
                _log.exception("job %s: its drift cannot be judged", job)

    def _forget_all_but(self, jobs: Container[str]) -> None:
        """Tell no more of jobs that were removed."""
        with self._lock:
            self._latest = {job: found for job, found in self._latest.items() if job in jobs}
            self._warned = {key for key in self._warned if key[0] in jobs}
            for key in [key for key in self._judged if key[0] not in jobs]:
                del self._judged[key]

    def profile(self, connection: Connection, proposal: str) -> Profile:
        """The profile that a proposal of the store carries."""
        with self._lock:
            if proposal in self._profiles:
                self._profiles.move_to_end(proposal)
                return self._profiles[proposal]
        row = get(connection, schema.proposals, proposal)
        assert row is not None  # no job begins without it, and it stays while a job uses it
        found = ProposalDocument.from_json(row["document"], "proposal").profile
        with self._lock:
            self._profiles[proposal] = found
            while len(self._profiles) > _PROFILES:
                self._profiles.popitem(last=False)
        return found

    def judge(self, connection: Connection, job: str, steps: int = WINDOW) -> JobDrift:
        """The drift over the last ``steps`` measured steps of a job of the store.

        Over the default window it is what the log and the metrics tell.
        """
        row = get(connection, schema.jobs, job)
        assert row is not None
        profile = self.profile(connection, row["proposal"])
        looked_at = progress.latest_measured_steps(connection, job, steps)
        state = (
            progress.measurements_state(connection, job, looked_at[0]) if looked_at else (0, 0.0)
        )
        with self._lock:
            earlier = self._judged.get((job, steps))
        if earlier is not None and earlier[0] == (looked_at, state):
            return earlier[1]
        found = self._judge(connection, job, looked_at, profile)
        with self._lock:
            self._judged[job, steps] = ((looked_at, state), found)
            self._judged.move_to_end((job, steps))
            while len(self._judged) > _JUDGEMENTS:
                self._judged.popitem(last=False)
        if steps == WINDOW:
            self._tell(job, found)
        return found

    def _judge(
        self, connection: Connection, job: str, steps: list[int], profile: Profile
    ) -> JobDrift:
        measured = progress.measured_since(connection, job, steps[0]) if steps else {}
        summaries = self._summaries.of(
            progress.digests(connection, job, measured),
            lambda missing: progress.plan_lines(connection, job, missing),
        )
        points: dict[Scheme, list[tuple[float, float]]] = {}
        for step, by_rank in measured.items():
            for pipeline in summaries[step].measurable if step in summaries else ():
                took_ms = pipeline.measured_ms(by_rank)
                if took_ms is not None and pipeline.predicted_ms > 0:
                    points.setdefault(pipeline.scheme, []).append((pipeline.predicted_ms, took_ms))
        schemes = sorted({each.scheme for s in summaries.values() for each in s.measurable})
        return JobDrift(
            profile.name,
            min(measured, default=None),
            max(measured, default=None),
            len(measured),
            sum(each.pipelines for each in summaries.values()),
            sum(len(each.measurable) for each in summaries.values()),
            sum(map(len, points.values())),
            tuple(
                drift(
                    scheme,
                    [predicted for predicted, _ in points.get(scheme, [])],
                    [took for _, took in points.get(scheme, [])],
                    stated_error(profile.by_scheme.get(scheme)),
                )
                for scheme in schemes
            ),
            {scheme: each[-MOST_POINTS:] for scheme, each in points.items()},
        )

    def _tell(self, job: str, found: JobDrift) -> None:
        """One line in the log when a scheme leaves its limit, one when it is within it again."""
        with self._lock:
            self._latest[job] = found.schemes
            for each in found.schemes:
                key = (job, each.scheme)
                if each.warning is not None and key not in self._warned:
                    self._warned.add(key)
                    _log.warning("job %s: %s", job, each.warning)
                elif each.warning is None and key in self._warned:
                    self._warned.discard(key)
                    _log.warning("job %s: %s is within its profile's error again", job, each.scheme)

    def metrics(self) -> Iterator[str]:
        """Gauges in the Prometheus text format, as the last look found them."""
        with self._lock:
            rows = [
                (f'job="{job}",scheme="{each.scheme}"', each)
                for job, schemes in sorted(self._latest.items())
                for each in schemes
                if each.recent is not None
            ]
        for name, about, value in _GAUGES:
            yield f"# HELP seqplan_drift_{name} {about}"
            yield f"# TYPE seqplan_drift_{name} gauge"
            for labels, each in rows:
                yield f"seqplan_drift_{name}{{{labels}}} {value(each):.6g}"
