"""Megatron with dynamic context parallelism: ring groups by length, by its scheduler's rules.

A sequence takes the next power of two of its length over the tokens that one rank is allowed, as
its context-parallel degree. Sequences are taken longest first; groups are opened side by side while
GPUs remain, and each is topped up with sequences of its degree while it stays within a slack of the
first group's time. The rest goes to further micro-steps, each behind the one before.
"""

from __future__ import annotations

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
    left = sorted(range(len(batch.lengths)), key=lambda i: (-batch.lengths[i], i))
    model_of = {i: _model(ladder, batch.lengths[i], limit) for i in left}
    pipelines: list[PlannedPipeline] = []
    number = 0
    while left:
        groups: list[tuple[Scheme, list[list[int]]]] = []
        gpus, target = setting.workload.gpus, 0.0
        while left:
            first = next((i for i in left if model_of[i].scheme.gpus <= gpus), None)
            if first is None:
                break
            model = model_of[first]
            gpus -= model.scheme.gpus
            target = target or model.latency.micro_batch_ms([batch.lengths[first]])
            micro, lengths = [first], [batch.lengths[first]]
            for i in left:
                if i == first or model_of[i].scheme != model.scheme:
                    continue
                more = [*lengths, batch.lengths[i]]
                tokens = sum(model.scheme.pad_sequence(n) for n in more)
                late = model.latency.micro_batch_ms(more) > target * (1 + SLACK)
                if tokens <= model.capacity and not late:
                    micro.append(i)
                    lengths = more
            members = set(micro)
            left = [i for i in left if i not in members]
            groups.append((model.scheme, [micro]))
        groups.sort(key=lambda group: -group[0].gpus)
        pipelines += setting.pipelines(batch, groups, number)
        number += 1
    return tuple(pipelines)


def _model(ladder: dict[int, SchemeModel], length: int, limit: int) -> SchemeModel:
    """Choose a sequence's ring: the next power of two, or the next there is that holds it."""
    wanted = 2 ** ceil(log2(max(1.0, length / limit)))
    holding = [ring for ring in sorted(ladder) if ladder[ring].max_sequence >= length]
    return ladder[next((ring for ring in holding if ring >= wanted), holding[-1])]
