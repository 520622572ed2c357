"""Megatron's packing-aware dynamic context parallelism: each micro-batch partitions all ranks.

A micro-batch begins with the longest sequence on the fewest ranks that hold it. Every further one,
longest first, joins a group or opens one on free ranks, of any degree that holds it, wherever the
largest load stays least and within a cap. Loads are length² / degree, whatever a micro-batch or a
token costs next to attention. Ranks left without work widen a group of the smallest degree; what
found no place waits for the next micro-batch.

Source: ``next_hdp_group_packing_aware`` of Megatron-LM's development branch, August 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean

import numpy as np

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.simulation.iteration import Execution, compute_ms
from seqplan.planner.sync.times import Layout, layout_text
from seqplan.planner.systems.setting import ComparedSystem, Setting, Skipped
from seqplan.plans.plan import PlannedPipeline
from seqplan.plans.scheme import Scheme

KEY, NAME = "megatron-packing", "Megatron dynamic CP, packing-aware"

CAP = 1.05
"""A rank's load stays within this multiple of the longest sequence times a rank's tokens."""

TOKEN_SHARES = (1.0, 0.75, 0.5, 0.35)
"""Shares of a rank's memory that are tried as its limit of tokens, for the best."""

PROMISING = 1.3
"""A limit or layout this far above the best on the first batches is not run on the others."""

_FIRST = 2

Ladder = dict[int, SchemeModel]
"""The fastest scheme of each context-parallel degree of one layout."""


def megatron_packing(setting: Setting) -> list[ComparedSystem | Skipped]:
    """Set up the rule on the layout and token limit that serve these batches best."""
    ladders = _ladders(setting)
    if not ladders:
        why = f"profile {setting.profile.name} has no context-parallel schemes without stages"
        return [Skipped(KEY, NAME, why)]
    settings = [
        (layout, ladder, limit)
        for layout, ladder in ladders.items()
        for limit in _limits(ladder)
        if limit * max(ladder) >= setting.longest
    ]
    if not settings:
        return [Skipped(KEY, NAME, f"no context parallelism holds {setting.longest:,} tokens")]

    def mean_ms(tried: tuple[Layout, Ladder, int], batches: Sequence[Batch]) -> float:
        layout, ladder, limit = tried
        runs = (_micro_batches(setting, batch, ladder, limit) for batch in batches)
        fraction = setting.profile.forward_fraction
        compute = mean(compute_ms((run,), fraction) for run in runs)
        return compute + setting.sync.compute_exposed_ms([layout])

    first = [mean_ms(tried, setting.batches[:_FIRST]) for tried in settings]
    near = [
        tried for tried, time in zip(settings, first, strict=True) if time <= min(first) * PROMISING
    ]
    layout, ladder, limit = min(near, key=lambda tried: mean_ms(tried, setting.batches))
    return [
        ComparedSystem(
            KEY,
            NAME,
            f"{layout_text(layout)}, at most {limit:,} tokens a rank; best of several on these "
            "batches",
            False,
            lambda batch: Execution((_micro_batches(setting, batch, ladder, limit),)),
        )
    ]


def _ladders(setting: Setting) -> dict[Layout, Ladder]:
    ladders: dict[Layout, Ladder] = {}
    for scheme, model in sorted(setting.models.items()):
        power = scheme.sp & (scheme.sp - 1) == 0
        if (scheme.pp > 1 and not setting.in_lockstep) or not power or model.max_sequence <= 0:
            continue
        ladder = ladders.setdefault((scheme.tp, scheme.pp), {})
        known = ladder.get(scheme.sp)
        length = min(model.max_sequence, setting.longest)
        if known is None or model.alone_ms(length) < known.alone_ms(length):
            ladder[scheme.sp] = model
    return {layout: ladder for layout, ladder in ladders.items() if 1 in ladder and len(ladder) > 1}


def _limits(ladder: Ladder) -> list[int]:
    """List limits of tokens a rank that every degree of the ladder holds."""
    most = min(model.max_sequence // degree for degree, model in ladder.items())
    return sorted({int(most * share) for share in TOKEN_SHARES})


@dataclass
class PackedGroup:
    """Sequences (positions) that run together on ``degree`` ranks; ``tokens`` and load of one.

    ``scheme``: how they run; its padding counts as tokens.
    """

    scheme: Scheme
    positions: list[int] = field(default_factory=list)
    tokens: float = 0.0
    load: float = 0.0

    @property
    def degree(self) -> int:
        return self.scheme.sp

    def add(self, position: int, length: int) -> None:
        self.positions.append(position)
        self.tokens += self.scheme.pad_sequence(length) / self.degree
        self.load += length * length / self.degree


class _GroupsOfScheme:
    """Tokens and load of a micro-batch's groups of one scheme, as arrays."""

    def __init__(self, most: int) -> None:
        self.tokens = np.empty(most)
        self.loads = np.empty(most)
        self.numbers: list[int] = []
        self.places: dict[int, int] = {}

    def note(self, number: int, group: PackedGroup) -> None:
        """Store what the group with this number in the micro-batch has now."""
        place = self.places.setdefault(number, len(self.numbers))
        if place == len(self.numbers):
            self.numbers.append(number)
        self.tokens[place], self.loads[place] = group.tokens, group.load

    def find_least(
        self, load: float, largest: float, tokens: float, limit: int
    ) -> list[tuple[float, int]]:
        """Return the largest load with a sequence if it stays least, and that group's number.

        ``load`` and ``tokens`` of the sequence; ``largest`` load without it. The first of several
        groups that hold it within ``limit`` tokens; an empty list when none does.
        """
        count = len(self.numbers)
        loads = np.maximum(self.loads[:count] + load, largest)
        loads[self.tokens[:count] + tokens > limit] = np.inf
        if not count or (least := float(loads[place := int(loads.argmin())])) == np.inf:
            return []
        return [(least, self.numbers[place])]


def _micro_batches(
    setting: Setting, batch: Batch, ladder: Ladder, limit: int
) -> tuple[PlannedPipeline, ...]:
    """Form micro-batches until every sequence runs.

    Ranks go from one to the next as they end, or all together in lockstep.
    """
    scheme = next(iter(ladder.values())).scheme
    ranks = setting.workload.gpus // (scheme.tp * scheme.pp)
    schemes = [model.scheme for degree, model in sorted(ladder.items()) if degree <= ranks]
    left = sorted(range(len(batch.lengths)), key=lambda i: (-batch.lengths[i], i))
    pipelines: list[PlannedPipeline] = []
    number = 0
    while left:
        groups, left = next_micro_batch(batch.lengths, left, schemes, ranks, limit)
        groups.sort(key=lambda group: -group.degree)  # aligned; stable
        work = [(group.scheme, [group.positions]) for group in groups]
        pipelines += setting.pipelines(batch, work, number if setting.in_lockstep else None)
        number += 1
    return tuple(pipelines)


def next_micro_batch(
    lengths: Sequence[int], left: Sequence[int], schemes: Sequence[Scheme], ranks: int, limit: int
) -> tuple[list[PackedGroup], list[int]]:
    """Place sequences that fit one micro-batch; the groups, and the rest (positions)."""
    cap = lengths[left[0]] * limit * CAP
    groups: list[PackedGroup] = []
    by_scheme = [_GroupsOfScheme(ranks // scheme.sp) for scheme in schemes]
    free, largest = ranks, 0.0
    later: list[int] = []
    for position in left:
        length = lengths[position]
        best: tuple[float, int, int] | None = None
        for k, scheme in enumerate(schemes):
            tokens = scheme.pad_sequence(length) / scheme.sp
            if tokens > limit or (best is not None and not groups):
                continue
            load = length * length / scheme.sp
            options = by_scheme[k].find_least(load, largest, tokens, limit)
            if free >= scheme.sp:
                options.append((max(largest, load), -1))
            for value, number in options:
                if (value <= cap or not groups) and (best is None or value < best[0]):
                    best = value, k, number
        if best is None:
            later.append(position)
            continue
        _, k, number = best
        if number < 0:
            free -= schemes[k].sp
            number = len(groups)
            groups.append(PackedGroup(schemes[k]))
        groups[number].add(position, length)
        by_scheme[k].note(number, groups[number])
        largest = max(largest, groups[number].load)
    _widen(groups, lengths, schemes, free)
    return groups, later


def _widen(
    groups: list[PackedGroup], lengths: Sequence[int], schemes: Sequence[Scheme], free: int
) -> None:
    """Give free ranks to groups: the first of the smallest degree takes the next one, again."""
    while free > 0:
        smallest = min(group.degree for group in groups)
        wider = next((scheme for scheme in schemes if scheme.sp > smallest), None)
        if wider is None or wider.sp - smallest > free:
            break
        free -= wider.sp - smallest
        k = next(k for k, group in enumerate(groups) if group.degree == smallest)
        widened = PackedGroup(wider)
        for position in groups[k].positions:
            widened.add(position, lengths[position])
        groups[k] = widened
