"""A training step of the runtime: is the time that it states the device's, and does nothing wait.

The states are those of one rank, whose sync is with itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from seqplan.plans.scheme import Scheme
from seqplan.plans.views.rank_view import RankView, rank_view
from seqplan.profiler.measure.bench import RankWork, make_full_plan
from seqplan.profiler.verify.results import Figure
from seqplan.profiler.verify.settings import VerifySettings
from seqplan.runtime.data.micro_batch import MicroBatchWork
from seqplan.runtime.data.prepared_step import PreparedStep
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.losses.token_losses import label_loss, loss_divisor
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.training.prepare import make_preparer
from seqplan.runtime.training.run_step import apply_gradients, run_step

LAYERS, VOCABULARY = 2, 32_000
"""Of the model that is trained: with its optimizer's states it has to fit on any device."""

STOPWATCH_ERROR, WALL_ERROR = 0.05, 0.02
"""Most that a step's time of its micro-batches, and of itself, may be off."""

WARM_UP, LEAST_STEPS, MOST_STEPS = 2, 3, 20

SHORTEST = 128
"""The longest sequence of a step is not halved below it."""


def check_step(settings: VerifySettings) -> tuple[list[Figure], list[str]]:
    """Train a few steps, each followed by one whose micro-batches are waited for."""
    config = replace(settings.model, layers=LAYERS, vocab=min(settings.model.vocab, VOCABULARY))
    lengths: tuple[int, ...] = (24, 9, 1) if settings.quick else (2048, 1024, 900, 124)
    with _alone(settings.device) as group:
        trained = _Trained(settings, config, lengths, group)
        while not settings.quick and max(lengths) > SHORTEST and _too_slow(settings, trained):
            lengths = tuple(-(-length // 2) for length in lengths)
            trained = _Trained(settings, config, lengths, group)
        figures, steps = _time_steps(settings, trained)
    notes = [f"{steps} steps of {sum(lengths):,} tokens, {LAYERS} layers"]
    if settings.cuda:
        figures.append(_synchronizations(settings, config, lengths, notes))
    return figures, notes


class _Trained:
    """A model in training on one micro-batch, over and over."""

    def __init__(
        self,
        settings: VerifySettings,
        config: ModelConfig,
        lengths: Sequence[int],
        group: dist.ProcessGroup,
    ) -> None:
        self._device = settings.device
        with settings.device:
            self._model = Llama(config).to(settings.dtype)
        self._states = ShardedStates(self._model, group)
        self._optimizer = torch.optim.AdamW(
            [master for _, master in self._states.master_parameters()], lr=1e-3
        )
        self._view: RankView = rank_view(make_full_plan(Scheme(), lengths, 1), 0)
        prepare = make_preparer(
            SeededTokens(config.vocab, 0),
            Peers(None),
            heads=config.heads,
            kv_heads=config.kv_heads,
            device=settings.device,
            kernel=settings.kernel,
        )
        self._work: PreparedStep[MicroBatchWork] = prepare(self._view)

    def step(self) -> tuple[float, float]:
        """Run a step; the seconds of its micro-batches and of itself, as it states them."""
        result = run_step(self._view, self._work, self._model, self._states, self._optimizer)
        return result.compute_s, result.step_s

    def run_waited_step(self) -> float:
        """Run a step by its parts; seconds of its micro-batches, by the wall and waited for."""
        divisor = loss_divisor(self._view, self._work, self._states)
        self._states.all_gather()
        self.wait()
        started = time.perf_counter()
        total = 0.0
        for micro_batch in self._work:
            output = self._model(micro_batch.tokens, micro_batch.context)
            loss = label_loss(output, micro_batch) / divisor
            self._states.backward(loss, last=micro_batch.last)
        self.wait()
        seconds = time.perf_counter() - started
        self._states.reduce_scatter()
        apply_gradients(self._states, self._optimizer, total, None)
        return seconds

    def wait(self) -> None:
        """Wait until the device has nothing left to do."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _too_slow(settings: VerifySettings, trained: _Trained) -> bool:
    """Whether the fewest steps would exceed the time, by one of them."""
    trained.wait()
    started = time.monotonic()
    trained.step()
    trained.wait()
    steps = 2 * (WARM_UP + LEAST_STEPS)
    return steps * (time.monotonic() - started) > settings.seconds_of("step")


def _time_steps(settings: VerifySettings, trained: _Trained) -> tuple[list[Figure], int]:
    until = time.monotonic() + settings.seconds_of("step")
    for _ in range(WARM_UP):
        trained.step()
        trained.run_waited_step()
    ratios: list[float] = []
    shares: list[float] = []
    walls: list[float] = []
    most = LEAST_STEPS if settings.quick else MOST_STEPS
    while len(ratios) < LEAST_STEPS or (len(ratios) < most and time.monotonic() < until):
        trained.wait()
        started = time.perf_counter()
        compute_s, step_s = trained.step()
        trained.wait()
        walls.append(step_s / (time.perf_counter() - started))
        ratios.append(compute_s / trained.run_waited_step())
        shares.append(compute_s / step_s)
    figures = [
        Figure.near_one(group, "median", median(values), None if settings.quick else error)
        for group, values, error in (
            ("micro-batches' time over the same waited for", ratios, STOPWATCH_ERROR),
            ("a step's time over the wall's", walls, WALL_ERROR),
        )
    ]
    figures.append(Figure("micro-batches' part of a step", "median", median(shares), "%"))
    return figures, len(ratios)


def _synchronizations(
    settings: VerifySettings, config: ModelConfig, lengths: Sequence[int], notes: list[str]
) -> Figure:
    """Run layers forward and backward where waiting for the device is an error."""
    bench = settings.make_bench(LAYERS, config)
    work = RankWork(bench).of(Scheme(), lengths)
    assert work is not None
    waits = 0
    work.layers.backward(work.layers.forward())  # kernels are loaded
    # Of lengths that the device has not had: their indices are new, as in every step of training.
    new = RankWork(bench).of(Scheme(), [length - 1 for length in lengths])
    assert new is not None
    call = new.layers
    torch.cuda.synchronize(settings.device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        call.backward(call.forward())
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        waits = 1
        notes.append(f"a layer waits for the device: {' '.join(str(error).split())[:200]}")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Figure("layers that wait for the device", "forward and backward", float(waits), most=0.0)


@contextmanager
def _alone(device: torch.device) -> Iterator[dist.ProcessGroup]:
    """Make a process group of this process alone, and end it."""
    if dist.is_initialized():
        raise RuntimeError("the step is checked in one process, which has no ranks yet")
    if device.type == "cuda":
        index = torch.device("cuda", torch.cuda.current_device())
        dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1, device_id=index)
    else:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()
