"""Samples of all rounds and runs together, as if the device had been equally fast throughout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqplan.costs.fit.sample_file import read_samples, read_syncs
from seqplan.costs.fit.samples import MeasuredOn, Role, Sample, SampleError, require_same
from seqplan.costs.fit.sync_samples import SyncSample
from seqplan.plans.scheme import Scheme

Floats = npt.NDArray[np.float64]


def group_by_mode(files: Sequence[Path]) -> list[list[Path]]:
    """Group files of samples by their recomputation mode.

    ``SampleError`` if anything else that they were measured with differs, or two are the same.
    """
    groups: dict[str, list[Path]] = {}
    first: MeasuredOn | None = None
    by_text: dict[bytes, Path] = {}
    for path in files:
        measured_on, _ = read_samples(path)
        text = path.read_bytes()
        if text in by_text:
            raise SampleError(f"{path}: the samples of {by_text[text]} again. Give each run once")
        by_text[text] = path
        first = first or measured_on
        require_same(replace(measured_on, recompute=first.recompute), first, str(path))
        groups.setdefault(measured_on.recompute, []).append(path)
    return list(groups.values())


def merge_runs(files: list[Path]) -> tuple[MeasuredOn, list[Sample]]:
    """Read the samples of several runs, each ``rescale_to_usual_speed``, all ``pool_samples``.

    ``SampleError`` where device, dtype or model differ, or nothing was measured.
    """
    if not files:
        raise SampleError("no files of samples to merge. Give the plans that were executed")
    measured_on, first = read_samples(files[0])
    of_first = rescale_to_usual_speed(first)
    samples = list(of_first)
    for path in files[1:]:
        other, more = read_samples(path)
        require_same(other, measured_on, str(path))
        rescaled = rescale_to_usual_speed(more)
        samples += _read_as_in(first, rescaled, _compare_times(of_first, rescaled))
    if not samples:
        raise SampleError(f"{', '.join(map(str, files))}: nothing was measured; measure again")
    return measured_on, pool_samples(samples)


FAST = 0.05
"""Quantile of the yardstick's readings that is taken as the speed of an undisturbed device."""


def merge_sync_samples(files: Sequence[Path]) -> list[SyncSample]:
    """Read the syncs of several runs that ``merge_runs`` takes."""
    return [sync for path in files for sync in read_syncs(path)]


def rescale_to_usual_speed(samples: Sequence[Sample]) -> list[Sample]:
    """Rescale every repetition's time of one run to the run's usual speed.

    A repetition around which the yardstick took longer than it usually does was slowed, too: by a
    neighbor on the same silicon, or by its clock. The run itself gives the strength: see
    ``response``. Usual is the mean of the middle half of all readings, which moves little by little
    as a device is slowed for more of the time, where a median would jump. Repetitions without a
    reading stay as they are.
    """
    usual = _usual_reading(samples)
    if usual is None:
        return list(samples)
    exponent = response(samples)

    def rescale(times: tuple[float, ...], yardstick_ms: tuple[float, ...]) -> tuple[float, ...]:
        if not yardstick_ms:
            return times
        pairs = zip(times, yardstick_ms, strict=True)
        return tuple(ms * (usual / now) ** exponent for ms, now in pairs)

    return [
        replace(
            sample,
            layers_ms=rescale(sample.layers_ms, sample.layers_yardstick_ms),
            forward_ms=rescale(sample.forward_ms, sample.layers_yardstick_ms),
            ends_ms=rescale(sample.ends_ms, sample.ends_yardstick_ms),
            experts_ms=rescale(sample.experts_ms, sample.experts_yardstick_ms),
            layers_cpu_ms=rescale(sample.layers_cpu_ms, sample.layers_yardstick_ms)
            if sample.layers_cpu_ms
            else (),
        )
        for sample in samples
    ]


def _usual_reading(samples: Sequence[Sample]) -> float | None:
    """Return the mean of the middle half of all readings; None without any."""
    readings = np.sort([ms for _, yardstick_ms in _iterate_timed(samples) for ms in yardstick_ms])
    return _mean_middle_half(readings) if len(readings) else None


def _mean_middle_half(readings: Floats) -> float:
    """Return the mean of the middle half of sorted readings."""
    quarter = len(readings) // 4
    return float(readings[quarter : len(readings) - quarter].mean())


def _compare_times(first: Sequence[Sample], other: Sequence[Sample]) -> float:
    """Return how many times as long layers took in another run: the median of micro-batches.

    1 if no micro-batch was measured in both.
    """
    medians = [
        {key: float(np.median(ms)) for key, ms in _list_layers_ms(run)} for run in (first, other)
    ]
    ratios = [medians[1][key] / medians[0][key] for key in medians[0].keys() & medians[1].keys()]
    return float(np.median(ratios)) if ratios else 1.0


def _list_layers_ms(
    samples: Sequence[Sample],
) -> list[tuple[tuple[Scheme, tuple[int, ...]], tuple[float, ...]]]:
    pooled = pool_samples(samples)
    return [((s.scheme, s.lengths), s.layers_ms) for s in pooled if s.layers_ms and not s.oom]


def _read_as_in(first: Sequence[Sample], other: Sequence[Sample], slower: float) -> list[Sample]:
    """Scale another run's readings to the first run's usual one, times ``slower``.

    A yardstick of another run may be another release's product, or next to other ranks: only how
    its readings vary within their run counts, and how far the times of both runs are apart.
    """
    usual, theirs = _usual_reading(first), _usual_reading(other)
    if usual is None or theirs is None:
        return list(other)
    scale = slower * usual / theirs
    rescaled = []
    for sample in other:
        read: dict[str, Any] = {
            name: tuple(ms * scale for ms in getattr(sample, name)) for name in _READINGS
        }
        rescaled.append(replace(sample, **read))
    return rescaled


def response(samples: Sequence[Sample]) -> float:
    """Estimate what share of a slower yardstick a repetition is slower by: from 0 to 1.

    The slope of log time over log yardstick among the repetitions of one micro-batch, the same for
    all micro-batches. It is near 1 if readings show the load during a repetition, and near 0
    if they are noise, or the work waits for something else. Then times are best left alone.
    """
    across, along = 0.0, 0.0
    for times, yardstick_ms in _iterate_timed(pool_samples(samples)):
        slower, read = _deviations(times), _deviations(yardstick_ms)
        across += float(read @ slower)
        along += float(read @ read)
    return min(max(across / along, 0.0), 1.0) if along > 0 else 0.0


def _deviations(times: tuple[float, ...]) -> Floats:
    """Return logarithms over their median's; an interruption counts as twice the time at most."""
    logarithms = np.log(times)
    limit = np.log(2)
    deviations: Floats = np.clip(logarithms - np.median(logarithms), -limit, limit)
    return deviations


def _iterate_timed(
    samples: Iterable[Sample],
) -> Iterator[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Yield times and readings wherever there is a reading for each time."""
    for sample in samples:
        yield from (
            (times, yardstick_ms)
            for times, yardstick_ms in (
                (sample.layers_ms, sample.layers_yardstick_ms),
                (sample.ends_ms, sample.ends_yardstick_ms),
                (sample.experts_ms, sample.experts_yardstick_ms),
            )
            if yardstick_ms and len(times) == len(yardstick_ms)
        )


def device_spread(samples: Iterable[Sample]) -> float | None:
    """Compute how far the layers' yardstick varied, a share; None if not read.

    The larger of its interquartile range over its median, and of how far its fast readings are
    below the usual one, to which times are rescaled: a device that is slow for most of the time has
    a narrow range around a slow speed.
    """
    readings = np.sort([ms for sample in samples for ms in sample.layers_yardstick_ms])
    if not len(readings):
        return None
    fast, low, middle, high = np.quantile(readings, (FAST, 0.25, 0.5, 0.75))
    usual = _mean_middle_half(readings)
    return float(max((high - low) / middle, (usual - fast) / usual))


_READINGS = ("layers_yardstick_ms", "ends_yardstick_ms", "experts_yardstick_ms")

_REPEATED = (
    *("layers_ms", "ends_ms", "forward_ms", "layers_cpu_ms", "layers_host_ms", "experts_ms"),
    *_READINGS,
)
"""Fields of a sample with a value for each repetition."""

_LARGEST = (
    *("saved_bytes", "layers_saved_bytes", "layers_peak_bytes", "ends_peak_bytes"),
    *("allocated_bytes", "reserved_bytes", "host_bytes"),
)
"""Fields of which the largest of all rounds counts."""


def pool_samples(samples: Iterable[Sample]) -> list[Sample]:
    """Return one sample of each micro-batch, with the repetitions of all its rounds and runs.

    What disturbs the device for a while disturbs a few repetitions of many micro-batches then, and
    not all repetitions of some. Out of memory once is out of memory.
    """
    together: dict[tuple[Scheme, Role, tuple[int, ...], int], list[Sample]] = {}
    for sample in samples:
        key = (sample.scheme, sample.role, sample.lengths, sample.layers)
        together.setdefault(key, []).append(sample)
    return [
        next((sample for sample in same if sample.oom), None) or _pool(same)
        for same in together.values()
    ]


def _pool(same: list[Sample]) -> Sample:
    pooled: dict[str, Any] = {
        name: tuple(ms for sample in same for ms in getattr(sample, name)) for name in _REPEATED
    }
    for name in _LARGEST:
        values = [getattr(sample, name) for sample in same]
        pooled[name] = max((value for value in values if value is not None), default=None)
    return replace(same[0], turn=0, **pooled)
