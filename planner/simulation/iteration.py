"""One simulated iteration of any system, from the pipelines that it would run.

Pipelines run 1F1B with their real micro-batches. A system may run phases one after another, with
a switch between them; within a phase ranks and micro-steps are as in a plan. Then parameters and
gradients are synchronized and the optimizer steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seqplan.costs.profile import Profile
from seqplan.planner.batches.batch import Batch
from seqplan.planner.simulation.flops import model_flops, peak_flops
from seqplan.planner.simulation.one_f_one_b import ForwardFraction
from seqplan.planner.simulation.timeline import pipelines_timeline, simulate_pipelines_ms
from seqplan.planner.sync.times import Layout, SyncTimes, layouts_of
from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline
from seqplan.plans.ranges import ranges_of
from seqplan.plans.recomputation import rank_mode
from seqplan.plans.schedule import stages_of_micro_steps
from seqplan.plans.scheme import Scheme


@dataclass(frozen=True)
class Span:
    """One thing that some ranks do: ``kind`` is forward, backward, sync, optimizer or switch.

    ``ranks``: half-open range of global ranks (one pipeline stage); times in ms from the start of
    the iteration.
    """

    ranks: tuple[int, int]
    kind: str
    micro_batch: int | None
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class ModeUse:
    """A recomputation mode of an iteration: its micro-batches, their tokens and GPU-time (ms)."""

    name: str
    micro_batches: int
    tokens: int
    gpu_ms: float


@dataclass(frozen=True)
class Iteration:
    """One simulated iteration of one system; times in ms.

    ``compute_ms``: all pipelines, forward and backward; ``sync_ms``: parameter all-gather and
    gradient reduce-scatter not hidden; ``rank_busy_ms``: forward and backward per rank;
    ``bubble_ratio``: idle share of rank-time until the last backward; ``imbalance``: (slowest −
    fastest) over fastest rank's end of backward, of ranks with work; ``mfu``: model FLOPs over
    peak, attention counted by Σl² of the sequences, None if the profile does not state the model's
    sizes or the GPU's peak is unknown; ``gap`` and ``planning_ms``: of our plans only; ``modes``:
    recomputation modes with their micro-batches, if the profile has several.
    """

    step: int
    strategy: str
    schemes: tuple[tuple[Scheme, int], ...]
    tokens: int
    sequences: int
    longest: int
    compute_ms: float
    sync_ms: float
    optimizer_ms: float
    rank_busy_ms: tuple[float, ...]
    rank_end_ms: tuple[float, ...]
    bubble_ratio: float
    imbalance: float
    mfu: float | None
    gap: float | None
    planning_ms: float | None
    spans: tuple[Span, ...]
    modes: tuple[ModeUse, ...] = ()

    @property
    def total_ms(self) -> float:
        """Return the time of the whole iteration."""
        return self.compute_ms + self.sync_ms + self.optimizer_ms

    @property
    def tokens_per_s(self) -> float:
        """Return the tokens of the step per second of the iteration."""
        return self.tokens / self.total_ms * 1000


@dataclass(frozen=True)
class Execution:
    """One step of a system: phases of pipelines, ``switch_ms`` between two of them.

    ``gap`` and ``planning_ms`` (proven gap, time to plan): None if a system does not have them.
    """

    phases: tuple[tuple[PlannedPipeline, ...], ...]
    switch_ms: float = 0.0
    gap: float | None = None
    planning_ms: float | None = None
    expert_parallel: int = 1

    @classmethod
    def from_plan(cls, plan: Plan, planning_ms: float | None = None) -> Execution:
        """Make the execution of a plan, which is one phase."""
        return cls(
            (plan.pipelines,),
            gap=plan.gap,
            planning_ms=planning_ms,
            expert_parallel=plan.expert_parallel,
        )

    @property
    def pipelines(self) -> Iterator[PlannedPipeline]:
        """Yield all pipelines, phase after phase."""
        for phase in self.phases:
            yield from phase

    @property
    def layouts(self) -> list[frozenset[Layout]]:
        """List the layouts of each phase's pipelines: how they split their parameters."""
        return [layouts_of(p.scheme for p in phase) for phase in self.phases]

    def __str__(self) -> str:
        """Write the strategy: phases by ``→``, micro-steps by ``|``; equal ones are counted."""
        return " → ".join(_phase_text(phase) for phase in self.phases)


def _regroups(phase: Sequence[PlannedPipeline]) -> bool:
    """Whether a rank is in two pipelines of a phase."""
    ranks = [rank for pipeline in phase for rank in pipeline.ranks]
    return len(set(ranks)) < len(ranks)


def simulate_iteration(
    batch: Batch, execution: Execution, profile: Profile, gpus: int, sync: SyncTimes
) -> Iteration:
    """Simulate one iteration on ``gpus`` GPUs.

    ``compute_ms`` leaves out the switches between phases, which count as sync; so do
    ``rank_end_ms``: when the last pipeline of a rank ends, its drain included. The imbalance takes,
    per rank, Σ over phases and micro-steps of the time until its pipeline ended there. A rank
    without a micro-batch all step has no work: it counts in the bubble ratio alone. ``ValueError``
    when a pipeline uses a rank beyond ``gpus``.
    """
    busy, end, occupied = [0.0] * gpus, [0.0] * gpus, [0.0] * gpus
    spans: list[Span] = []
    clock = switched = 0.0
    for number, phase in enumerate(execution.phases):
        if number:
            spans.append(Span((0, gpus), "switch", None, clock, clock + execution.switch_ms))
            switched += execution.switch_ms
            clock += execution.switch_ms
        clock = _run_phase(
            phase,
            profile,
            clock,
            switched,
            spans=spans,
            ranks=(busy, end, occupied),
            expert_parallel=execution.expert_parallel,
        )
    compute = clock - switched
    exposed = max(
        (
            sync.compute_exposed_ms(layouts, regrouping=_regroups(phase))
            for layouts, phase in zip(execution.layouts, execution.phases, strict=True)
        ),
        default=0.0,
    )
    for kind, lasts in (("sync", exposed), ("optimizer", sync.optimizer_ms)):
        if lasts:
            spans.append(Span((0, gpus), kind, None, clock, clock + lasts))
        clock += lasts
    working = [time for time in occupied if time > 0]
    counts = Counter(pipeline.scheme for pipeline in execution.pipelines)
    flops, peak = model_flops(profile.shape, batch.lengths), peak_flops(profile)
    mfu = None if flops is None or peak is None else flops / (peak * gpus * clock / 1000)
    return Iteration(
        step=batch.step,
        strategy=str(execution),
        schemes=tuple(
            sorted(
                counts.items(), key=lambda scheme_count: (-scheme_count[0].gpus, scheme_count[0])
            )
        ),
        tokens=batch.tokens,
        sequences=len(batch.lengths),
        longest=batch.longest,
        compute_ms=compute,
        sync_ms=exposed + switched,
        optimizer_ms=sync.optimizer_ms,
        rank_busy_ms=tuple(busy),
        rank_end_ms=tuple(end),
        bubble_ratio=max(0.0, 1 - sum(busy) / (gpus * compute)),
        imbalance=max(working) / min(working) - 1,
        mfu=mfu,
        gap=execution.gap,
        planning_ms=execution.planning_ms,
        spans=tuple(spans),
        modes=tuple(_count_modes(execution)),
    )


def _count_modes(execution: Execution) -> Iterator[ModeUse]:
    """Count the micro-batches of each recomputation mode, the mode that keeps most first."""
    by_mode: dict[str, list[tuple[PlannedPipeline, MicroBatch]]] = {}
    for pipeline in execution.pipelines:
        for batch in pipeline.micro_batches:
            if batch.recompute is not None:
                by_mode.setdefault(batch.recompute, []).append((pipeline, batch))
    for mode in sorted(by_mode, key=rank_mode):
        of_mode = by_mode[mode]
        yield ModeUse(
            mode,
            len(of_mode),
            sum(batch.tokens for _, batch in of_mode),
            sum(pipeline.scheme.gpus * batch.cost_ms for pipeline, batch in of_mode),
        )


def compute_ms(
    phases: Sequence[Sequence[PlannedPipeline]],
    forward_fraction: ForwardFraction,
    expert_parallel: int = 1,
) -> float:
    """Simulate the phases one after another, without switches (ms)."""
    return sum(simulate_pipelines_ms(phase, forward_fraction, expert_parallel) for phase in phases)


def _run_phase(
    phase: Sequence[PlannedPipeline],
    profile: Profile,
    begin: float,
    switched: float,
    spans: list[Span],
    ranks: tuple[list[float], list[float], list[float]],
    expert_parallel: int,
) -> float:
    """Simulate one phase from ``begin``; adds to the spans and to the ranks' busy, end and taken.

    Returns its end.
    """
    busy, end, occupied = ranks
    times = pipelines_timeline(phase, profile.forward_fraction, expert_parallel)
    in_stages = stages_of_micro_steps(phase) > 1
    micro_step_end: dict[int | None, float] = {}
    for pipeline, placed in zip(phase, times.pipelines, strict=True):
        micro_step_end[pipeline.micro_step] = max(
            micro_step_end.get(pipeline.micro_step, 0.0), placed.end_ms
        )
    starts, begin_ms = {}, 0.0
    for number in sorted(micro_step_end, key=lambda n: -1 if n is None else n):
        starts[number] = begin_ms
        begin_ms = max(begin_ms, micro_step_end[number])
    in_micro_step: dict[tuple[int | None, int], float] = {}
    for pipeline, placed in zip(phase, times.pipelines, strict=True):
        if pipeline.ranks and max(pipeline.ranks) >= len(busy):
            raise ValueError(
                f"rank {max(pipeline.ranks)} is beyond the {len(busy)} GPUs. Use a lower rank"
            )
        if not pipeline.micro_batches:
            continue
        width = pipeline.scheme.stage_gpus
        for event in placed.events:
            members = pipeline.ranks[event.stage * width : (event.stage + 1) * width]
            kind = "forward" if event.phase == "F" else "backward"
            first, last = begin + event.start_ms, begin + event.end_ms
            for run in ranges_of(members):
                spans.append(Span(run, kind, event.micro_batch, first, last))
            for rank in members:
                busy[rank] += last - first
        for rank in pipeline.ranks:
            end[rank] = max(end[rank], begin + placed.end_ms - switched)
            key = (pipeline.micro_step, rank)
            # Micro-steps overlap in their stages: what counts is how long they last at one.
            took = pipeline.micro_batches[0].cost_ms if in_stages else placed.end_ms
            took -= 0.0 if in_stages else starts[pipeline.micro_step]
            in_micro_step[key] = max(in_micro_step.get(key, 0.0), took)
    for (_, rank), time in in_micro_step.items():
        occupied[rank] += time
    return begin + times.simulated_ms


def _phase_text(phase: Sequence[PlannedPipeline]) -> str:
    micro_steps: dict[int | None, Counter[Scheme]] = {}
    for pipeline in phase:
        micro_steps.setdefault(pipeline.micro_step, Counter())[pipeline.scheme] += 1
    texts = [
        " + ".join(f"{n}×{scheme}" for scheme, n in counts.items())
        for counts in micro_steps.values()
    ]
    joined: list[tuple[str, int]] = []
    for text in texts:
        if joined and joined[-1][0] == text:
            joined[-1] = (text, joined[-1][1] + 1)
        else:
            joined.append((text, 1))
    return " | ".join(text if n == 1 else f"{n} micro-steps of {text}" for text, n in joined)
