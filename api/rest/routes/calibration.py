"""Whether a job's profile still holds: predicted and measured times by scheme."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from seqplan.api.rest.payloads.answers import CalibrationResponse as CalibrationAnswer
from seqplan.api.rest.payloads.answers import answers
from seqplan.api.rest.payloads.problems import require_found
from seqplan.api.rest.state.readers import read_off_loop
from seqplan.api.rest.state.shared import ServiceOf, WatchOf
from seqplan.api.service.calibration_watch import WINDOW
from seqplan.api.service.job_calibration import MOST_POINTS
from seqplan.api.store.rows import JobOutline, get
from seqplan.costs.fit.calibration import CalibrationError
from seqplan.plans import service_routes

routes = APIRouter(tags=["progress"])

Window = Annotated[int, Query(ge=1, le=1000, description="measured steps to look back on")]
Points = Annotated[int, Query(ge=0, le=MOST_POINTS, description="of each scheme, the latest")]


@routes.get(service_routes.CALIBRATION, **answers(CalibrationAnswer))
@read_off_loop
def get_calibration(
    service: ServiceOf, watch: WatchOf, job: str, steps: Window = WINDOW, points: Points = 0
) -> dict[str, Any]:
    """Predicted and measured times by scheme over the last measured steps; ratios, not %.

    ``bias`` and ``error.recent`` are medians over the latest pipelines; if ``recent`` has
    left ``limit``, the profile's error, ``warning`` is true and ``message`` explains it.
    ``points``: how many [predicted ms, measured ms] of each scheme to add.
    """
    with service.store.reading() as connection:
        require_found(get(connection, JobOutline, job), f"job {job}")
        of_job = watch.calibration_of(connection, job, steps)
    schemes = []
    for of_scheme in of_job.schemes:
        shown = _shown(of_scheme)
        if points:
            shown["points"] = of_job.points.get(of_scheme.scheme, [])[-points:]
        schemes.append(shown)
    return {
        "job": job,
        "profile": of_job.profile,
        "steps": {"first": of_job.first, "last": of_job.last, "measured": of_job.steps},
        "pipelines": {
            "all": of_job.pipelines,
            "measurable": of_job.measurable,
            "measured": of_job.measured,
        },
        "schemes": schemes,
        "warning": any(shown["warning"] for shown in schemes),
    }


def _shown(of_scheme: CalibrationError) -> dict[str, Any]:
    stated = of_scheme.stated
    return {
        "scheme": str(of_scheme.scheme),
        "pipelines": of_scheme.pipelines,
        "error": {
            "median": of_scheme.median,
            "p90": of_scheme.p90,
            "recent": of_scheme.recent,
        },
        "bias": of_scheme.bias,
        "stated": None
        if stated is None
        else {"samples": stated.samples, "median": stated.median, "p90": stated.p90},
        "limit": of_scheme.limit,
        "limit_assumed": stated is None,
        "warning": of_scheme.warning is not None,
        "message": of_scheme.warning,
    }
