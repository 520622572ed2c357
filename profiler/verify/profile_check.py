"""A short profile of a model on this device, and whether a few layers stand for all of them."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from seqplan.costs.fit.busy import busy
from seqplan.costs.fit.latency_fit import USABLE_MEDIAN, USABLE_P90, USABLE_SPREAD
from seqplan.costs.fit.measured_profile import fit_all
from seqplan.costs.fit.pooling import merge_runs
from seqplan.costs.fit.samples import MeasuredOn, Sample
from seqplan.plans.scheme import Scheme
from seqplan.profiler.measure.design import DesignPoint, design
from seqplan.profiler.measure.measurer import Measurer
from seqplan.profiler.measure.run import ROUNDS, Task, measure
from seqplan.profiler.verify.results import Figure
from seqplan.profiler.verify.settings import VerifySettings

MEASURED_LAYERS = 2
"""Layers that a profile runs of a model by default."""

EXTRAPOLATION_ERROR = 0.05
"""Most that more layers may be off from those in proportion."""

RUNS = 15
"""Runs of a micro-batch that a profile takes about, those that warm up and count bytes too."""

STACK_REPEATS = 3
OTHER_RUNS = 50
"""As many runs of the longest micro-batch as choosing it and the stacks of more layers take."""


def check_profile(settings: VerifySettings) -> tuple[list[Figure], list[str]]:
    """Profile a model on the device, evaluate the fit, and run deeper stacks."""
    shortest, longest = _range(settings)
    points = design(shortest, longest, points=4 if settings.quick else 8)
    measured_on, samples = _measure(settings, points)
    fit = fit_all(measured_on, samples).latencies[Scheme()]
    judged = not settings.quick
    figures = []
    for kind, errors in (("held-out lengths", fit.held_out), ("packings", fit.packed)):
        for name, value, limit in (
            ("median", errors.median, USABLE_MEDIAN),
            ("p90", errors.p90, USABLE_P90),
        ):
            if value is not None:
                most = limit if judged else None
                figures.append(Figure(f"error on {kind}", name, value, "%", most=most))
    spread = USABLE_SPREAD if judged else None
    figures.append(Figure("spread of repetitions", "quartiles", fit.spread, "%", most=spread))
    figures += _stack_figures(settings, longest)
    notes = [f"{shortest:,} to {longest:,} tokens, {len(samples)} micro-batches"]
    if (reason := busy(samples)) is not None:
        notes.append(reason)
    return figures, notes


def _range(settings: VerifySettings) -> tuple[int, int]:
    """Choose lengths whose whole design takes about the time that there is."""
    if settings.quick:
        return 8, 64
    shortest, longest = (256, 4096) if settings.cuda else (64, 256)
    most = 65536 if settings.cuda else 4096
    # Cores are shared with other work, which may begin after the first call was timed.
    time_ms = settings.seconds_of("profile") * (1e3 if settings.cuda else 5e2)
    measurer = Measurer(settings.make_bench(MEASURED_LAYERS))
    while longest < most:
        sample = measurer.measure(Scheme(), DesignPoint("fit", (2 * longest,)), repeats=1)
        if sample.oom:
            break
        tokens = sum(sum(point.lengths) for point in design(shortest, 2 * longest, points=8))
        once_ms = sample.layers_ms[0] + sample.ends_ms[0]
        if (RUNS * tokens / (2 * longest) + OTHER_RUNS) * once_ms > time_ms:
            break
        longest *= 2
    return shortest, longest


def _measure(
    settings: VerifySettings, points: list[DesignPoint]
) -> tuple[MeasuredOn, list[Sample]]:
    task = Task(
        config=settings.model,
        layers=MEASURED_LAYERS,
        device=settings.device.type,
        dtype=str(settings.dtype).removeprefix("torch."),
        schemes=(Scheme(),),
        points=tuple(points),
        repeats=1 if settings.quick else 6,
        kernel=None if settings.kernel is None else settings.kernel.name,
    )
    until = time.monotonic() + settings.seconds_of("profile")

    def stop_in_time(done: int, of: int, left_s: float, sample: Sample) -> None:
        if ROUNDS * done >= of and time.monotonic() > until and not settings.quick:
            raise _TimeUp

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.jsonl"
        try:
            measured_on, samples, _ = measure(task, path, 0, 1, stop_in_time)
        except _TimeUp:
            return merge_runs([path])
    return measured_on, list(samples)


class _TimeUp(Exception):
    """The time is up, and the first round is done: all of the design is measured once."""


def _stack_figures(settings: VerifySettings, longest: int) -> list[Figure]:
    """Time stacks of 2, 4 and 8 layers, and predict the others from the first."""
    stacks = (2, 4) if settings.quick else (2, 4, 8)
    packings = [
        DesignPoint("packed", tuple(lengths))
        for lengths in ((longest // 4,), (longest // 16,) * 4, (longest // 8, longest // 16))
    ]
    times_ms: dict[tuple[int, int], float] = {}
    measurers = {layers: Measurer(settings.make_bench(layers), warm=True) for layers in stacks}
    for number, point in enumerate(packings):  # stacks one behind the other: a device may slow down
        for layers, measurer in measurers.items():
            sample = measurer.measure(
                Scheme(), point, repeats=1 if settings.quick else STACK_REPEATS
            )
            if not sample.oom:
                times_ms[layers, number] = median(sample.layers_ms)
    figures = []
    for layers in stacks[1:]:
        biases = [
            times_ms[stacks[0], number] * layers / stacks[0] / time_ms - 1
            for (of, number), time_ms in times_ms.items()
            if of == layers and (stacks[0], number) in times_ms
        ]
        if biases:
            limit = None if settings.quick else EXTRAPOLATION_ERROR
            figures.append(
                Figure(
                    f"{stacks[0]} layers in proportion over more of them",
                    f"{layers} layers, {len(biases)} micro-batches",
                    median(biases),
                    "%",
                    least=None if limit is None else -limit,
                    most=limit,
                )
            )
    return figures
