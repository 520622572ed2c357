"""Megatron with dynamic context parallelism: ring groups by length, by its scheduler's rules.

A sequence takes the next power of two of its length over the tokens that one rank is allowed, as
its context-parallel degree. Sequences are taken longest first; groups are opened side by side while
GPUs remain, and each is topped up with sequences of its degree while it stays within a slack of the
first group's time. The rest goes to further micro-steps, each behind the one before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil, log2

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.simulation.iteration import Execution
from seqplan.planner.systems.setting import ComparedSystem, Setting, Skipped
from seqplan.plans.plan import PlannedPipeline
from seqplan.plans.scheme import Scheme

NAME = "Megatron dynamic CP"
SLACK = 0.05
"""A group may take this much longer than the first of its micro-step."""


def megatron_dcp(setting: Setting) -> list[ComparedSystem | Skipped]:
    """Set up the system on the smallest tp degree whose rings hold the longest sequence."""
    ladders: dict[int, dict[int, SchemeModel]] = {}
    for scheme, model in sorted(setting.models.items()):
        power = scheme.ring & (scheme.ring - 1) == 0
        if scheme.pp == 1 and scheme.ulysses == 1 and power:
            ladders.setdefault(scheme.tp, {})[scheme.ring] = model
    if not any(ring > 1 for ladder in ladders.values() for ring in ladder):
        why = f"profile {setting.profile.name} has no ring (context-parallel) schemes"
        return [Skipped("megatron-dcp", NAME, why)]
    holding = {
        tp: ladder
        for tp, ladder in ladders.items()
        if len(ladder) > 1
        and max(model.max_sequence for model in ladder.values()) >= setting.longest
    }
    if not holding:
        return [Skipped("megatron-dcp", NAME, f"no ring holds {setting.longest:,} tokens")]
    tp = min(holding)
    ladder = holding[tp]
    limit = min(model.capacity // ring for ring, model in ladder.items())
    return [
        ComparedSystem(
            "megatron-dcp",
            NAME,
            f"tp{tp}, rings of the next power of two of length over {limit:,} tokens",
            False,
            lambda batch: Execution((_micro_steps(setting, batch, ladder, limit),)),
        )
    ]


def _micro_steps(
    setting: Setting, batch: Batch, ladder: dict[int, SchemeModel], limit: int
) -> tuple[PlannedPipeline, ...]:
    left: dict[int, list[int]] = {}
    for i in sorted(range(len(batch.lengths)), key=lambda i: (-batch.lengths[i], i)):
        left.setdefault(_choose_ring(ladder, batch.lengths[i], limit), []).append(i)
    pipelines: list[PlannedPipeline] = []
    number = 0
    while any(left.values()):
        groups: list[tuple[Scheme, list[list[int]]]] = []
        gpus, target = setting.workload.gpus, 0.0
        while open_rings := [r for r in left if left[r] and ladder[r].scheme.gpus <= gpus]:
            ring = min(open_rings, key=lambda r: (-batch.lengths[left[r][0]], left[r][0]))
            model = ladder[ring]
            gpus -= model.scheme.gpus
            target = target or model.latency.micro_batch_ms([batch.lengths[left[ring][0]]])
            micro = _take_group(model, left[ring], batch.lengths, target * (1 + SLACK))
            groups.append((model.scheme, [micro]))
        groups.sort(key=lambda group: -group[0].gpus)
        pipelines += setting.pipelines(batch, groups, number)
        number += 1
    return tuple(pipelines)


def _take_group(
    model: SchemeModel, left: list[int], lengths: Sequence[int], latest_ms: float
) -> list[int]:
    """Take the longest off ``left``, and further ones while the group is not late."""

    def work_ms(position: int) -> float:
        return lengths[position] * (model.a * lengths[position] + model.b)

    def fits(position: int) -> bool:
        padded = model.scheme.pad_sequence(lengths[position])
        return tokens + padded <= model.capacity and time_ms + work_ms(position) <= latest_ms

    group = [left.pop(0)]
    tokens = model.scheme.pad_sequence(lengths[group[0]])
    time_ms = model.c + work_ms(group[0])
    place = 0
    # A longer one fits only if a shorter one does, so the first that fits is searched by halves.
    while (place := bisect_left(left, True, place, key=fits)) < len(left):
        group.append(left.pop(place))
        tokens += model.scheme.pad_sequence(lengths[group[-1]])
        time_ms += work_ms(group[-1])
    return group


def _choose_ring(ladder: dict[int, SchemeModel], length: int, limit: int) -> int:
    """Choose a sequence's ring: the next power of two, or the next there is that holds it."""
    wanted = 2 ** ceil(log2(max(1.0, length / limit)))
    holding = [ring for ring in sorted(ladder) if ladder[ring].max_sequence >= length]
    return next((ring for ring in holding if ring >= wanted), holding[-1])
