"""Predicted against executed times of one batch under many strategies, and their order.

Four CPU ranks first measure a profile with the profiler of ``seqplan profile measure``. The planner
then dispatches and packs one batch for each strategy, and predicts the step: pipelines, sync and
optimizer. The ranks execute every plan with the built-in Llama, in turn, several times.

A machine with a core for each rank states wall time, of the slowest rank. If ranks share cores,
wall time is nearer to the sum of their work than to its maximum. Both sides then count processor
time: the profile is measured with it, and ``core_per_rank`` replays each step on a core per rank.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.core_per_rank import StepRecord, record_step, replay
from benchmarks.ranks import measure_profile, on_ranks
from benchmarks.settings import Data, machine
from benchmarks.tables import Output, Table, write_csv
from seqplan import Batch, Plan, Profile, Strategy, Workload, rank_view
from seqplan.planner.placement.assembly import assemble
from seqplan.planner.simulation.timeline import simulate_pipelines_ms
from seqplan.planner.step.selection import select
from seqplan.planner.sync.choice import choose_sync
from seqplan.plans.plan import Provenance
from seqplan.plans.version import VERSION
from seqplan.profiler.measure.design import design
from seqplan.profiler.measure.run import Task
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.pipeline.staged_llama import StagedLlama

RESULTS = "SEQPLAN_RESULTS"
"""Environment variable: a folder for ``order.csv``; nothing is written without it."""

RANKS = 4

TARGET = 0.9
"""Least rank correlation of predicted and executed times."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured, planned and executed.

    ``capacity``: tokens of a micro-batch at tp = 1; ``measured``: tokens of the least and largest
    micro-batch that the profile is fitted to; ``measured_layers`` stand for all;
    ``processor_time``: whether that counts, by default if ranks share cores.
    """

    ranks: int
    config: ModelConfig
    strategies: tuple[str, ...]
    lengths: tuple[int, ...]
    capacity: int
    measured: tuple[int, int]
    points: int = 5
    measured_layers: int = 2
    measured_repeats: int = 3
    warm_up: int = 1
    repeats: int = 6
    processor_time: bool = field(default_factory=lambda: len(os.sched_getaffinity(0)) < RANKS)

    @property
    def parsed(self) -> list[Strategy]:
        """Return the strategies."""
        return [Strategy.parse(text) for text in self.strategies]


def draw_lengths(count: int, middle: int, longest: int, seed: int) -> tuple[int, ...]:
    """Draw ``count`` log-normal lengths, and add one of ``longest`` tokens."""
    drawn = np.random.default_rng(seed).lognormal(np.log(middle), 0.8, count)
    return (longest, *drawn.astype(int).clip(16, longest).tolist())


SETTING = Setting(
    ranks=RANKS,
    config=ModelConfig(hidden=128, layers=4, heads=8, kv_heads=4, ffn=352, vocab=512),
    strategies=(
        *("4xtp1", "2xu2", "2xr2", "1xu4", "1xr4", "1xu2.r2", "2xtp2", "1xtp4", "1xtp2.u2"),
        *("1xtp2.r2", "2xpp2", "1xpp4", "1xtp2.pp2", "1xpp2.u2", "1xpp2.r2", "2xtp1 + 1xu2"),
        *("2xtp1 + 1xr2", "2xtp1 + 1xtp2", "2xtp1 + 1xpp2", "1xu2 + 1xr2", "1xu2 + 1xtp2"),
        *("1xu2 + 1xpp2", "1xr2 + 1xtp2", "1xtp2 + 1xpp2"),
    ),
    lengths=draw_lengths(80, 64, 256, seed=0),
    capacity=256,
    measured=(32, 1024),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy: times of a step in ms; those of execution are medians over its repeats.

    ``simulated_ms``: the predicted step with 1F1B of the real micro-batches, where ``pipelines_ms``
    counts every micro-batch of a pipeline as its most expensive one; ``busiest_ms``: processor
    time of the busiest rank, which the executed time exceeds by waits; ``spread``: between the
    quartiles of the executed times, over their median.
    """

    strategy: str
    heterogeneous: bool
    micro_batches: int
    pipelines_ms: float
    sync_ms: float
    simulated_ms: float
    executed_ms: float
    busiest_ms: float
    spread: float
    wall_ms: float

    @property
    def predicted_ms(self) -> float:
        """Return the predicted step: pipelines, sync and optimizer."""
        return self.pipelines_ms + self.sync_ms

    @property
    def times_ms(self) -> tuple[float, ...]:
        """Return the times in the order of the table's columns."""
        predicted = self.pipelines_ms, self.sync_ms, self.predicted_ms, self.simulated_ms
        return *predicted, self.executed_ms, self.busiest_ms

    @property
    def ratio(self) -> float:
        """Return executed over predicted time."""
        return self.executed_ms / self.predicted_ms


@dataclass(frozen=True, slots=True)
class Order:
    """All rows, and the residuals of the measured profile."""

    setting: Setting
    residuals: str
    rows: tuple[Row, ...]

    def correlation(self, first: str = "predicted_ms", second: str = "executed_ms") -> float:
        """Return Spearman's rank correlation of two fields of the rows."""
        from scipy.stats import spearmanr  # half a second, which tests pay that import this file

        return float(spearmanr(self._column(first), self._column(second)).statistic)

    def _column(self, field: str) -> list[float]:
        return [getattr(row, field) for row in self.rows]


def compare_order(data: Sequence[Data], setting: Setting = SETTING) -> Output:
    """Compare predicted and executed times; the batch is drawn, not taken from ``data``."""
    order = execute_order(setting)
    yield from list_results(order)
    if folder := os.environ.get(RESULTS):
        write_order(order, Path(folder))


def execute_order(setting: Setting) -> Order:
    """Measure, plan and execute the setting's strategies on its ranks."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = on_ranks(
            setting.ranks, _rank, (setting, folder), ["torch._dynamo", "benchmarks.order"]
        )
    _, planned, residuals = outcomes[0]
    rows = []
    for number, (plan, sync_ms, simulated_ms) in enumerate(planned):
        steps = list(zip(*(records[number] for records, _, _ in outcomes), strict=True))
        walls = [max(record.wall_s for record in step) for step in steps]
        executed = [replay(step) for step in steps] if setting.processor_time else walls
        low, middle, high = np.quantile(executed, (0.25, 0.5, 0.75))
        rows.append(
            Row(
                strategy=str(plan.strategy),
                heterogeneous=not plan.strategy.homogeneous,
                micro_batches=sum(len(pipeline.micro_batches) for pipeline in plan.pipelines),
                pipelines_ms=plan.predicted_ms,
                sync_ms=sync_ms,
                simulated_ms=simulated_ms + sync_ms,
                executed_ms=1e3 * float(middle),
                busiest_ms=1e3 * median(max(r.processor_s for r in step) for step in steps),
                spread=float((high - low) / middle),
                wall_ms=1e3 * median(walls),
            )
        )
    return Order(setting, residuals, tuple(sorted(rows, key=lambda row: row.executed_ms)))


def plan_strategies(setting: Setting, profile: Profile) -> list[tuple[Plan, float, float]]:
    """Plan the batch for each strategy.

    Returns each plan, its sync with optimizer, and its pipelines as simulated (ms).
    """
    batch = Batch.from_lengths(setting.lengths)
    workload = Workload(setting.ranks, batch.longest, batch.tokens)
    models, sync = workload.models(profile), choose_sync(profile, setting.ranks)
    planned = []
    for strategy in setting.parsed:
        selected = select(batch, [strategy], models, setting.ranks, tailor=False)
        plan = assemble(
            batch,
            selected,
            Provenance(VERSION, 0, profile.digest, None),
            setting.ranks,
            forward_fraction=profile.forward_fraction,
        )
        sync_ms = sync.of_strategy_ms(strategy) + sync.optimizer_ms
        simulated_ms = simulate_pipelines_ms(plan.pipelines, profile.forward_fraction)
        planned.append((plan, sync_ms, simulated_ms))
    return planned


def _rank(rank: int, setting: Setting, folder: str) -> Any:
    """Measure and execute on one rank; return records by strategy, the plans and residuals."""
    strategies = setting.parsed
    schemes = sorted({scheme for strategy in strategies for scheme, _ in strategy.counts})
    points = design(*setting.measured, points=setting.points)
    task = Task(
        config=setting.config,
        layers=setting.measured_layers,
        device="cpu",
        dtype="float32",
        schemes=tuple(schemes),
        points=tuple(point for point in points if point.role == "fit"),
        repeats=setting.measured_repeats,
        processor_time=setting.processor_time,
    )
    profile, document = measure_profile(task, Path(folder), setting.capacity, rank, setting.ranks)
    planned = plan_strategies(setting, profile)
    records = _execute(rank, setting, [plan for plan, _, _ in planned])
    return records, planned, document["residuals"]


def _execute(rank: int, setting: Setting, plans: Sequence[Plan]) -> list[list[StepRecord]]:
    """Execute the plans in turn; return the records of each plan's steps, without warm-ups."""
    groups = Communicators.create()
    torch.manual_seed(0)
    # Tensor parallelism by messages, as the profiler measures it on CPU ranks.
    job = StagedLlama(Llama(setting.config), groups, by_messages=True)
    optimizer = torch.optim.AdamW([master for _, master in job.states.master_parameters()])
    prepare = job.make_preparer(SeededTokens(setting.config.vocab, 0))
    records: list[list[StepRecord]] = [[] for _ in plans]
    for _ in range(setting.warm_up + setting.repeats):
        for plan, steps in zip(plans, records, strict=True):
            view = rank_view(plan, rank)
            work = prepare(view)
            dist.barrier()
            with record_step(rank, job.states) as record:
                job.run_step(view, work, optimizer)
            steps.append(record)
    return [steps[setting.warm_up :] for steps in records]


def list_results(order: Order) -> Output:
    """Yield the setting, the table and the correlation."""
    setting, config, lengths = order.setting, order.setting.config, order.setting.lengths
    yield Table(
        "strategy | micro-batches | pipelines | sync, optimizer | predicted | simulated | executed"
        " | busiest rank | spread | executed / predicted | wall",
        "{} | {}" + " | {:.0f}" * 6 + " | {:.0%} | {:.2f} | {:.0f}",
        (
            (row.strategy, row.micro_batches, *row.times_ms, row.spread, row.ratio, row.wall_ms)
            for row in order.rows
        ),
        "Predicted against executed",
    )
    yield (
        f"{len(lengths)} sequences, {sum(lengths):,} tokens, longest {max(lengths):,}; Llama of "
        f"{config.layers} layers, hidden {config.hidden}, float32, on {setting.ranks} CPU ranks."
    )
    yield (
        "Ranks share cores: executed and predicted times are processor time, replayed on a "
        "core per rank. Wall time on the shared cores is listed."
        if setting.processor_time
        else "Executed time is the wall time of the slowest rank."
    )
    yield f"Profile: {order.residuals}."
    yield (
        f"Times in ms. Spearman's rank correlation with executed times over {len(order.rows)} "
        f"strategies: predicted {order.correlation():.3f} (target {TARGET}), simulated "
        f"{order.correlation('simulated_ms'):.3f}. Predicted with the busiest rank: "
        f"{order.correlation(second='busiest_ms'):.3f}, with wall times: "
        f"{order.correlation(second='wall_ms'):.3f}."
    )


def write_order(order: Order, folder: Path) -> None:
    """Write the rows to ``order.csv``, each with the machine."""
    clock = "processor time, replayed" if order.setting.processor_time else "wall"
    head = "strategy heterogeneous micro_batches pipelines_ms sync_optimizer_ms predicted_ms"
    head += " simulated_ms executed_ms busiest_rank_ms spread ratio wall_ms clock machine"
    rows = (
        (
            *(row.strategy, row.heterogeneous, row.micro_batches),
            *(f"{ms:.1f}" for ms in row.times_ms),
            *(f"{row.spread:.3f}", f"{row.ratio:.3f}", f"{row.wall_ms:.1f}", clock, machine()),
        )
        for row in order.rows
    )
    write_csv("order.csv", head.split(), rows, folder)
