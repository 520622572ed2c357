"""Metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from seqplan.api.service.calibration_watch import CalibrationWatch
from seqplan.api.service.service import Service
from seqplan.api.store.tables.jobs import STATES
from seqplan.costs.fit.calibration import CalibrationError
from seqplan.plans.version import VERSION

_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
KINDS = ("plan", "acknowledgement", "other")

_CALIBRATION: tuple[tuple[str, str, Callable[[CalibrationError], float | None]], ...] = (
    ("error", "Median of |measured - predicted| / predicted, latest.", attrgetter("recent")),
    ("bias", "Median of measured / predicted - 1, latest.", attrgetter("bias")),
    ("limit", "What the error may be by the profile.", attrgetter("limit")),
    ("warning", "1 where the error has left its limit.", lambda error: bool(error.warning)),
)

_COUNTS = {
    "acknowledgements": "Acknowledgements since the start.",
    "publications": "Plans published by this service since the start.",
    "planning_ends": "Jobs whose planning ended by an internal error since the start.",
}


class Metrics:
    """Figures of one service since it began, and of its jobs; none is read from a table."""

    def __init__(self, service: Service, watch: CalibrationWatch) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Figures(service, watch))
        ProcessCollector(registry=self._registry)
        seconds = Histogram(
            "seqplan_request_seconds",
            "Time until an answer begins, without requests that waited for a plan.",
            ["kind"],
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._registry.register(_CalibrationGauges(watch))
        # Looked up once: a lookup by label costs as much as the rest.
        self._seconds = {kind: seconds.labels(kind) for kind in KINDS}

    def record_answer(self, path: str, seconds: float) -> None:
        """Note that a request for ``path`` was answered after this time."""
        if "/plans/" in path:
            kind = "plan"
        else:
            kind = "acknowledgement" if path.endswith("/acks") else "other"
        self._seconds[kind].observe(seconds)

    def text(self) -> str:
        """Write all of them in the Prometheus text format."""
        return generate_latest(self._registry).decode()


class _Figures(Collector):
    def __init__(self, service: Service, watch: CalibrationWatch) -> None:
        self._service = service
        self._watch = watch

    def describe(self) -> Iterable[Metric]:
        return ()  # registering must not look into the store

    def collect(self) -> Iterable[Metric]:
        # From memory: a scrape reads no table.
        service, counts = self._service, self._service.counts
        health, size = service.store.health, service.store.size_bytes()
        states, jobs = service.upkeep.jobs_by_state, service.look_aheads()
        by_state = {state: states.get(state, 0) for state in STATES}
        yield _gauge("jobs", "Jobs of the store.", "state", by_state)
        about = "Steps planned beyond the slowest rank, of jobs that this service plans."
        yield _gauge("look_ahead_steps", about, "job", jobs)
        about = "When ranks last acknowledged a step to this service; Unix time."
        moments = service.last_acknowledgements()
        yield _gauge("last_acknowledgement_timestamp_seconds", about, "job", moments)
        about = "Revisions of a job by this service since the start."
        revisions = CounterMetricFamily("seqplan_revisions", about, labels=["job", "kind"])
        for of, count in sorted(service.revisions.items()):
            revisions.add_metric(of, count)
        yield revisions
        about = "Size of the store's SQLite files."
        yield GaugeMetricFamily("seqplan_store_bytes", about, value=size)
        yield _gauge("build_info", "1, by version.", "version", {VERSION: 1})
        about = "1 if the last write to the store succeeded."
        yield GaugeMetricFamily("seqplan_store_writable", about, value=int(health.problem is None))
        about = "Transactions since the start that the store could not end."
        yield CounterMetricFamily("seqplan_store_failures", about, value=health.failures)
        yield SummaryMetricFamily(
            "seqplan_planning_seconds",
            "Time that planning steps took since the start.",
            count_value=counts["publications"],
            sum_value=counts["planning_us"] / 1e6,
        )
        for name, about in _COUNTS.items():
            yield CounterMetricFamily(f"seqplan_{name}", about, value=counts[name])
        about = "Planning and other threads that ended before their time; /readyz names them."
        ended = len(service.faults()) + len(self._watch.faults())
        yield GaugeMetricFamily("seqplan_threads_ended", about, value=ended)
        about = "Requests answered since the start."
        by_status = CounterMetricFamily("seqplan_requests", about, labels=["status"])
        for name, count in sorted(counts.items()):
            if name.startswith("status "):
                by_status.add_metric([name.removeprefix("status ")], count)
        yield by_status


def _gauge(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    """Make a gauge with a value for each ``label``."""
    gauge = GaugeMetricFamily(f"seqplan_{name}", about, labels=[label])
    for key, value in values.items():
        gauge.add_metric([key], value)
    return gauge


class _CalibrationGauges(Collector):
    """By job and scheme, as the last look of the watch found them."""

    def __init__(self, watch: CalibrationWatch) -> None:
        self._watch = watch

    def collect(self) -> Iterable[Metric]:
        latest = self._watch.latest()
        for name, about, value in _CALIBRATION:
            gauge = GaugeMetricFamily(
                f"seqplan_calibration_{name}", about, labels=["job", "scheme"]
            )
            for job, calibration in latest:
                if (figure := value(calibration)) is not None:
                    gauge.add_metric([job, str(calibration.scheme)], figure)
            yield gauge
