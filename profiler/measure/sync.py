"""Measuring the sync: the runtime's all-gathers and reduce-scatters between pipelines of a layout.

Nothing else runs next to it: what overlap would hide is not measured. A few layers a stage
stand for all, measured at two numbers of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
import torch.distributed as dist

from seqplan.costs.fit.sync_samples import SyncSample
from seqplan.plans.scheme import Scheme
from seqplan.plans.views.placement import Placement, placement_of
from seqplan.profiler.measure.bench import Bench, make_full_plan
from seqplan.profiler.measure.timing import find_slowest
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.pipeline.llama_units import llama_units
from seqplan.runtime.states.staged_states import StagedStates
from seqplan.runtime.stopwatch import Clock

WARM_UP, REPEATS = 1, 5

Key = tuple[int, int, int, int]
"""tp, pp, ranks, layers a stage; as ``SyncSample.key``."""


def list_sync_measurements(schemes: Iterable[Scheme], bench: Bench) -> list[Key]:
    """List what to measure: each layout ⟨tp, pp⟩ of the schemes at two numbers of layers.

    Nothing on a single rank, and of models with experts, whose sync is derived.
    """
    if bench.world_size == 1 or bench.config.experts:
        return []
    keys = []
    for tp, pp in sorted({(scheme.tp, scheme.pp) for scheme in schemes}):
        stage = -(-bench.config.layers // pp)
        for layers in sorted({min(bench.layers, stage), min(2 * bench.layers, stage)}):
            keys.append((tp, pp, bench.world_size, layers))
    return keys


def measure_sync(
    bench: Bench, key: Key, group: dist.ProcessGroup, rail: dist.ProcessGroup | None = None
) -> SyncSample:
    """Measure the sync, and the optimizer's step on a rank's states; all ranks call it.

    ``group``: of all ranks, which carries nothing else; ``rail``: of ``make_rail``.
    """
    tp, pp, _, layers = key
    config = replace(bench.config, layers=layers * pp)
    states = _states(config, bench, group, rail)
    # Of the sequences only the placement of the pipelines counts.
    placement = placement_of(make_full_plan(Scheme(tp, pp), [1], bench.world_size).pipelines)
    optimizer = torch.optim.AdamW([master for _, master in states.master_parameters()])
    sync_ms = _times(lambda: _sync(states, placement), bench)
    optimizer_ms = _times(optimizer.step, bench)
    return SyncSample(tp, pp, bench.world_size, layers, sync_ms, optimizer_ms)


def _states(
    config: ModelConfig, bench: Bench, group: dist.ProcessGroup, rail: dist.ProcessGroup | None
) -> StagedStates:
    """Make the sharded states of a model; only the first rank's has values."""
    with torch.device(bench.device if bench.rank == 0 else "meta"):
        model = Llama(config).to(bench.dtype)
    return StagedStates(
        llama_units(config),
        config.layers,
        dict(model.named_parameters()),
        group,
        bench.device,
        rail=rail,
    )


def _sync(states: StagedStates, placement: Placement) -> None:
    """All-gather the placement's parameters, wait, and reduce-scatter zero gradients."""
    states.begin(placement)
    for at in range(len(states.units)):
        states.finish_all_gather(at)
    states.reduce_scatter()


def _times(run: Callable[[], object], bench: Bench) -> tuple[float, ...]:
    """Time a call in ms as often as ``REPEATS``, each the slowest rank's; all start together."""
    clock = Clock(bench.device, processor_time=bench.processor_time)
    times: list[float] = []
    for _ in range(WARM_UP + REPEATS):
        dist.barrier(group=bench.control_group)
        if bench.device.type == "cuda":
            torch.cuda.synchronize(bench.device)
        started = clock.mark()
        run()
        times.append(clock.ms(started, clock.mark()))
    return find_slowest([tuple(times[WARM_UP:])], bench.control_group)[0]
