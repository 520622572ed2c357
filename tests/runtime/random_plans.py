"""Random sound plans of sequence-parallel pipelines: any degrees, idle and regrouped ranks."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
from plan_builder import plan_of

from seqplan.plans.lint import lint
from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline
from seqplan.plans.schedule import schedule
from seqplan.plans.scheme import Scheme
from seqplan.plans.scheme_limits import find_unsupported


def random_lengths(rng: np.random.Generator, count: int, longest: int) -> list[int]:
    """Lengths with a long tail, one-token and odd sequences among them."""
    lengths = np.exp(rng.uniform(0, np.log(longest + 1), count)).astype(int).clip(1, longest)
    lengths[rng.random(count) < 0.1] = 1
    return [int(length) for length in lengths]


def random_plan(
    rng: np.random.Generator,
    world_size: int,
    *,
    step: int = 0,
    heads: int = 64,
    longest: int = 300,
    sequences: int = 12,
    waves: int = 2,
) -> Plan:
    """A plan in which ranks run ``waves`` pipelines at most, one after the other.

    ``heads`` bounds the Ulysses degree. Every sequence is in some micro-batch; ranks may be idle
    and pipelines may have no micro-batch.
    """
    lengths = random_lengths(rng, sequences, longest)
    slots: list[tuple[Scheme, tuple[int, ...]]] = []
    for _ in range(int(rng.integers(1, waves + 1))):
        free = [int(rank) for rank in rng.permutation(world_size)]
        while free:
            size = int(rng.integers(1, len(free) + 1))
            ulysses = int(rng.choice([u for u in range(1, heads + 1) if size % u == 0]))
            ranks = tuple(free[:size])
            free = free[size:]
            if rng.random() < 0.85:
                slots.append((Scheme(1, 1, ulysses, size // ulysses), ranks))
    if not slots:
        slots.append((Scheme(1, 1, 1, world_size), tuple(range(world_size))))
    return make_plan(_fill(rng, slots, lengths, 3), lengths, world_size, step=step)


def runnable_schemes(gpus: int, sizes: Mapping[str, int]) -> list[Scheme]:
    """Every scheme of so many GPUs that a model of ``sizes`` can run."""
    divisors = [degree for degree in range(1, gpus + 1) if gpus % degree == 0]
    schemes = [
        Scheme(tp, pp, ulysses, gpus // (tp * pp * ulysses))
        for tp, pp, ulysses in product(divisors, repeat=3)
        if gpus % (tp * pp * ulysses) == 0
    ]
    return [scheme for scheme in schemes if find_unsupported(scheme, **sizes) is None]


def random_staged_plan(
    rng: np.random.Generator,
    world_size: int,
    sizes: Mapping[str, int],
    *,
    step: int = 0,
    longest: int = 120,
    sequences: int = 14,
    most: int = 5,
) -> Plan:
    """A plan of any schemes side by side that a model of ``sizes`` can run.

    ``sizes``: as of ``find_unsupported``. Ranks in any order, some idle, some again in another
    pipeline later in the step; up to ``most`` micro-batches in a pipeline, none in some.
    """
    order = [int(rank) for rank in rng.permutation(world_size)]
    slots: list[tuple[Scheme, tuple[int, ...]]] = []
    while order:
        size = int(rng.integers(1, len(order) + 1))
        schemes = runnable_schemes(size, sizes)
        if not schemes:
            continue
        ranks, order = tuple(order[:size]), order[size:]
        if rng.random() < 0.12 and slots:
            continue
        weights = np.array(
            [1 + 2 * (s.tp > 1) + 2 * (s.pp > 1) + (s.sp > 1) for s in schemes], dtype=float
        )
        scheme = schemes[int(rng.choice(len(schemes), p=weights / weights.sum()))]
        slots.append((scheme, ranks))
        if scheme.sp > 1 and rng.random() < 0.3:
            # The last tp group of every stage goes on alone, with the same tp and pp.
            stage = scheme.stage_gpus
            ends = [ranks[(p + 1) * stage - scheme.tp : (p + 1) * stage] for p in range(scheme.pp)]
            slots.append((Scheme(tp=scheme.tp, pp=scheme.pp), sum(ends, ())))
    lengths = random_lengths(rng, sequences, longest)
    return make_plan(_fill(rng, slots, lengths, most), lengths, world_size, step=step)


def _fill(
    rng: np.random.Generator,
    slots: list[tuple[Scheme, tuple[int, ...]]],
    lengths: list[int],
    most: int,
) -> tuple[PlannedPipeline, ...]:
    """Assign sequences to up to ``most`` micro-batches of each slot's pipeline."""
    contents: list[list[list[int]]] = [
        [[] for _ in range(int(rng.integers(1, most + 1)))] for _ in slots
    ]
    for position in rng.permutation(len(lengths)):
        micro_batches = contents[int(rng.integers(len(slots)))]
        micro_batches[int(rng.integers(len(micro_batches)))].append(int(position))
    return tuple(
        _pipeline(scheme, ranks, lengths, [batch for batch in batches if batch])
        for (scheme, ranks), batches in zip(slots, contents, strict=True)
    )


def one_pipeline_plan(
    scheme: Scheme, lengths: list[int], *, step: int = 0, packed: bool = True
) -> Plan:
    """All sequences on one pipeline, in one micro-batch or each in a separate one."""
    positions = list(range(len(lengths)))
    batches = [positions] if packed else [[position] for position in positions]
    pipeline = _pipeline(scheme, tuple(range(scheme.gpus)), lengths, batches)
    return make_plan((pipeline,), lengths, scheme.gpus, step=step)


def make_plan(
    pipelines: tuple[PlannedPipeline, ...], lengths: list[int], world_size: int, *, step: int
) -> Plan:
    """The plan of these pipelines; sample ids are ten times the position, and the step added."""
    ids = tuple(10 * position + step for position in range(len(lengths)))
    fields: Any = {"step": step, "world_size": world_size, "ids": ids}
    plan = plan_of(pipelines, tuple(lengths), schedule(pipelines).makespan_ms, gap=0.0, **fields)
    faults = lint(plan, None)
    assert not faults, faults
    return plan


def _pipeline(
    scheme: Scheme, ranks: tuple[int, ...], lengths: list[int], batches: list[list[int]]
) -> PlannedPipeline:
    micro_batches = tuple(
        MicroBatch(
            tuple(batch),
            sum(lengths[position] for position in batch),
            scheme.pad_micro_batch([lengths[position] for position in batch]),
            float(sum(lengths[position] for position in batch)),
        )
        for batch in batches
    )
    costs = [batch.cost_ms for batch in micro_batches]
    bubble = (scheme.pp - 1) * max(costs, default=0.0)
    return PlannedPipeline(scheme, ranks, micro_batches, float(sum(costs) + bubble))
