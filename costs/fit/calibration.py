"""Calibration error of a profile on the steps that ranks measure, and its limit.

The error of a scheme is |measured − predicted| / predicted over the pipelines that were measured
lately (which pipelines count: ``refit``). It has left the error that the profile states for the
scheme when the **median** of the latest ``RECENT`` pipelines exceeds the stated 90th percentile:
then half of the errors are worse than nine tenths of the profile's held-out ones. No single
disturbed step can do that, nor the noise that the profile allows for: sixteen of 32 pipelines would
have to be among the one in ten (once in 10⁸), or, early in a job, four of eight (once in 200).
Of a long window only the end decides, so that a change is reported after sixteen pipelines, not
after half of the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from seqplan.costs.fit.refit import LEAST_TO_SCALE
from seqplan.costs.profiled_scheme import ProfiledScheme
from seqplan.plans.percent import percent
from seqplan.plans.scheme import Scheme

LEAST_MEASURED = LEAST_TO_SCALE
"""Pipelines measured before a scheme is warned of: as many as a refit needs to fix it."""

RECENT = 32
"""The latest pipelines, which decide whether the profile holds now."""

ASSUMED_LIMIT = 0.05
"""The limit of a scheme whose profile states no held-out error (published and derived ones)."""

LEAST_LIMIT = 0.01
"""No limit is below this: clocks and launches of a training step vary as much."""


@dataclass(frozen=True, slots=True)
class Stated:
    """Errors that a profile states on a scheme, from samples it was not fitted to."""

    samples: int
    median: float
    p90: float


@dataclass(frozen=True, slots=True)
class CalibrationError:
    """The running error of one scheme; ratios, not per cent; None if nothing was measured.

    ``median``, ``p90``: of the error over all ``pipelines`` of the window. ``recent``: the median
    over the latest of them, ``bias``: there the median of measured / predicted − 1, positive where
    ranks are slower than predicted. ``limit``: what ``recent`` may be. ``warning``: one sentence,
    None while the profile holds or too little was measured.
    """

    scheme: Scheme
    pipelines: int
    median: float | None
    p90: float | None
    recent: float | None
    bias: float | None
    stated: Stated | None
    limit: float
    warning: str | None


def find_stated_error(entry: ProfiledScheme | None) -> Stated | None:
    """Return the held-out error of a scheme's fit; None if the profile has none to be read."""
    held_out: Any = None if entry is None or entry.fit is None else entry.fit.get("held_out")
    if not isinstance(held_out, dict):
        return None
    median, p90, samples = (held_out.get(name) for name in ("median", "p90", "samples"))
    if not _is_error(median) or not _is_error(p90):
        return None
    return Stated(samples if isinstance(samples, int) else 0, float(median), float(p90))


def measure_calibration_error(
    scheme: Scheme,
    predicted_ms: Sequence[float],
    measured_ms: Sequence[float],
    stated: Stated | None,
) -> CalibrationError:
    """Compute the running error of aligned predictions and measurements (ms), oldest first."""
    limit = ASSUMED_LIMIT if stated is None else max(stated.p90, LEAST_LIMIT)
    count = len(measured_ms)
    if count == 0:
        return CalibrationError(scheme, 0, None, None, None, None, stated, limit, None)
    excess = np.asarray(measured_ms) / np.asarray(predicted_ms) - 1.0
    error = np.abs(excess)
    median, p90 = float(np.median(error)), float(np.quantile(error, 0.9))
    recent, bias = float(np.median(error[-RECENT:])), float(np.median(excess[-RECENT:]))
    warning = None
    if count >= LEAST_MEASURED and recent > limit:
        claim = "the 90th percentile its profile states" if stated else "assumed for its profile"
        latest = f"{scheme}: the last {min(count, RECENT)} measured pipelines"
        if abs(bias) > recent / 2:
            way = "slower" if bias > 0 else "faster"
            finding = f"{latest} were {percent(abs(bias))} {way} than predicted (median)"
        else:  # some slower, some faster: their median describes neither
            finding = f"{latest} missed the prediction by {percent(recent)} (median), either way"
        warning = f"{finding}; {percent(limit)} is {claim}. Refit it."
    return CalibrationError(scheme, count, median, p90, recent, bias, stated, limit, warning)


def _is_error(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
