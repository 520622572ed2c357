"""Check every invariant of a plan, and list the violations as readable lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count, pairwise
from typing import Protocol

from seqplan.plans.experts import holds_whole_blocks
from seqplan.plans.groups import Coordinates, process_groups
from seqplan.plans.lint_experts import check_exchanges, check_experts
from seqplan.plans.load import time_loads
from seqplan.plans.percent import percent
from seqplan.plans.plan import Plan, PlannedPipeline
from seqplan.plans.recomputation import window_share
from seqplan.plans.schedule import schedule
from seqplan.plans.scheme import Scheme
from seqplan.plans.shapes import count_added, pad_to_shape

ROUNDING_MS = 0.0005
"""Times are rounded to 3 decimals: each may be off by this much."""


_MICROSECOND = 1e-3
"""Times are whole microseconds, so a bound below one is written as 0."""

_Lengths = list[list[list[int] | None]]
"""Lengths by pipeline and micro-batch (tokens); None if a position is outside."""


class SchemeCost(Protocol):
    """Coefficients of one scheme in a profile: a·l² + b·l per sequence, c per micro-batch.

    ``a`` ms/token², ``b`` ms/token, ``c`` ms, ``max_len`` (MaxLen) tokens. ``kept_share``: the part
    of a token's bytes that is kept until backward. ``b_shared``: the part of b (ms/token) that a
    block of experts shares.
    """

    @property
    def a(self) -> float: ...
    @property
    def b(self) -> float: ...
    @property
    def c(self) -> float: ...
    @property
    def max_len(self) -> int: ...
    @property
    def kept_share(self) -> float: ...
    @property
    def b_shared(self) -> float: ...
    def find_mode(self, name: str | None, /) -> SchemeCost | None:
        """Return the costs of one recomputation mode; None for one that the profile lacks."""


def lint(plan: Plan, costs: Mapping[Scheme, SchemeCost] | None) -> list[str]:
    """Return one line for each violated invariant, none for a sound plan.

    Checks that need the profile, recomputed costs and MaxLen, are left out where ``costs`` is
    None; a scheme that ``costs`` lacks is a violation. Never raises on an unsound plan. Time
    linear in the sequences and in Σ ranks of the pipelines.
    """
    lengths = [
        [_lengths(plan, batch.sequences) for batch in pipeline.micro_batches]
        for pipeline in plan.pipelines
    ]
    faults = [*_sequences(plan), *_micro_batches(plan, lengths), *_check_modes(plan)]
    placement = [*_placement(plan), *_micro_steps(plan), *check_experts(plan)]
    faults += placement
    if not placement:
        # Derived from the placement: on an unsound one these would only repeat its faults.
        faults += [*_check_shared_ranks(plan), *_groups(plan)]
    if costs is not None:
        faults += _profile(plan, costs, lengths)
        faults += [] if placement else check_exchanges(plan)
    faults += [*_pipeline_times(plan), *_step_times(plan), *_selection(plan)]
    return faults


def _sequences(plan: Plan) -> Iterator[str]:
    size = len(plan.lengths)
    if len(plan.ids) != size:
        yield f"sequences: {len(plan.ids)} ids but {size} lengths"
    for position, length in enumerate(plan.lengths):
        if length < 1:
            yield f"sequence {position}: length {length} is not positive"
    uses = [0] * size
    for place, sequences in _batches_in_place(plan):
        for position in sequences:
            if 0 <= position < size:
                uses[position] += 1
            else:
                yield f"{place}: position {position} is outside the {size} sequences"
    for position, times in enumerate(uses):
        if times != 1:
            where = "no micro-batch" if times == 0 else f"{times} micro-batches"
            yield f"sequence {position}: is in {where}, not in exactly one"
    yield from _loads(plan)
    if any(size < 1 for size in plan.shapes) or list(plan.shapes) != sorted({*plan.shapes}):
        yield f"shapes: {list(plan.shapes)} are not tokens in ascending order"
    for rank in sorted({*plan.lost_ranks} - {*plan.idle_ranks}):
        yield f"lost_ranks: rank {rank} is not idle"
    total = sum(plan.lengths)
    if plan.tokens != total:
        yield f"tokens: {plan.tokens}, but the lengths sum to {total}"
    if not 0 <= plan.loss_tokens <= plan.tokens:
        yield f"loss_tokens: {plan.loss_tokens} is outside 0 … tokens = {plan.tokens}"


def _loads(plan: Plan) -> Iterator[str]:
    names = [load.name for load in plan.loads]
    if len(set(names)) < len(names):
        yield f"loads: {', '.join(names)}: a name is there twice"
    for load in plan.loads:
        for position, (tokens, ms) in enumerate(zip(load.tokens, load.work_ms, strict=False)):
            if ms > 0 and not tokens:
                yield f"sequence {position}: {ms} ms of load {load.name} without tokens"
        number = len(plan.lengths)
        for values in (load.tokens, load.work_ms):
            if len(values) != number:
                yield f"load {load.name}: {len(values)} values for {number} sequences"
        for index, pipeline in enumerate(plan.pipelines):
            for k, batch in enumerate(pipeline.micro_batches):
                inside = all(0 <= position < len(load.tokens) for position in batch.sequences)
                if inside and not load.holds(pipeline.scheme, batch.sequences):
                    yield (
                        f"pipeline {index} micro-batch {k}: more tokens of load {load.name} than "
                        f"the {load.capacity} that each rank holds"
                    )


def _batches_in_place(plan: Plan) -> Iterator[tuple[str, tuple[int, ...]]]:
    for index, pipeline in enumerate(plan.pipelines):
        for number, batch in enumerate(pipeline.micro_batches):
            yield f"pipeline {index} micro-batch {number}", batch.sequences


def _lengths(plan: Plan, sequences: tuple[int, ...]) -> list[int] | None:
    """Return the lengths at these positions, None when one is outside (reported elsewhere)."""
    if sequences and not 0 <= min(sequences) <= max(sequences) < len(plan.lengths):
        return None
    return [plan.lengths[position] for position in sequences]


def _check_modes(plan: Plan) -> Iterator[str]:
    """Check that all micro-batches have a recomputation mode, or none."""
    modes = [batch.recompute for pipeline in plan.pipelines for batch in pipeline.micro_batches]
    if any(modes) and None in modes:
        place, _ = list(_batches_in_place(plan))[modes.index(None)]
        yield f"{place}: has no recomputation mode, and others have one"


def _micro_batches(plan: Plan, lengths_of: _Lengths) -> Iterator[str]:
    for index, pipeline in enumerate(plan.pipelines):
        for number, batch in enumerate(pipeline.micro_batches):
            place = f"pipeline {index} micro-batch {number}"
            if not batch.sequences:
                yield f"{place}: has no sequences; leave it out"
            lengths = lengths_of[index][number]
            if lengths is None:
                continue
            if batch.tokens != sum(lengths):
                yield f"{place}: tokens {batch.tokens}, but its lengths sum to {sum(lengths)}"
            padded = pad_to_shape(pipeline.scheme, lengths, plan.shapes)
            if padded is None:
                yield f"{place}: no shape holds it, the largest is {plan.shapes[-1]} tokens a rank"
            elif batch.padded_tokens != padded:
                yield (
                    f"{place}: padded_tokens {batch.padded_tokens}, but {pipeline.scheme} pads "
                    f"its lengths to {padded}"
                )


def _placement(plan: Plan) -> Iterator[str]:
    world = plan.world_size
    if world < 1:
        yield f"world_size: {world} is not positive"
    used: set[int] = set()
    for index, pipeline in enumerate(plan.pipelines):
        place, ranks = f"pipeline {index}", pipeline.ranks
        if len(ranks) != pipeline.scheme.gpus:
            yield (
                f"{place}: {len(ranks)} ranks, but {pipeline.scheme} runs on {pipeline.scheme.gpus}"
            )
        if len(set(ranks)) != len(ranks):
            yield f"{place}: a rank is listed twice"
        if ranks and not 0 <= min(ranks) <= max(ranks) < world:
            yield f"{place}: ranks {min(ranks)} … {max(ranks)} are not all in 0 … {world - 1}"
        used.update(ranks)
    idle = set(plan.idle_ranks)
    if len(idle) != len(plan.idle_ranks):
        yield "idle_ranks: a rank is listed twice"
    if idle and not 0 <= min(idle) <= max(idle) < world:
        yield f"idle_ranks: {min(idle)} … {max(idle)} are not all in 0 … {world - 1}"
    if busy := idle & used:
        yield f"idle_ranks: rank {min(busy)} is in a pipeline"
    # Counted, not listed: a world_size that is wrong may be too large to list.
    covered = {rank for rank in used | idle if 0 <= rank < world}
    if lost := world - len(covered):
        least = next(rank for rank in count() if rank not in covered)
        yield f"rank {least}: is in no pipeline and not idle ({lost} such ranks)"


def _micro_steps(plan: Plan) -> Iterator[str]:
    micro_steps = [pipeline.micro_step for pipeline in plan.pipelines]
    numbers = [number for number in micro_steps if number is not None]
    if not numbers:
        return
    if len(numbers) != len(micro_steps):
        yield f"micro-steps: pipeline {micro_steps.index(None)} has none, others have"
    if any(later < earlier for earlier, later in pairwise(numbers)):
        yield "micro-steps: they descend in list order"
    if min(numbers) < 0 or len(set(numbers)) != max(numbers) + 1:
        yield f"micro-steps: they are not 0 … {max(numbers)} without a gap"
    if len(stages := sorted({pipeline.scheme.pp for pipeline in plan.pipelines})) > 1:
        yield f"micro-steps: they go through {stages[0]} stages and through {stages[-1]}"
    places: set[tuple[int, int]] = set()
    for index, pipeline in enumerate(plan.pipelines):
        if pipeline.micro_step is None:
            continue
        if len(pipeline.micro_batches) > 1:
            number = len(pipeline.micro_batches)
            step = pipeline.micro_step
            yield f"pipeline {index}: {number} micro-batches in micro-step {step}, at most one"
        for rank in pipeline.ranks:
            if (pipeline.micro_step, rank) in places:
                step = pipeline.micro_step
                yield f"pipeline {index}: rank {rank} is already in use in micro-step {step}"
            places.add((pipeline.micro_step, rank))


def _check_shared_ranks(plan: Plan) -> Iterator[str]:
    # A rank keeps its shard of the parameters for the whole step: the tp and pp degrees and its
    # place on both axes.
    if sum(len(pipeline.ranks) for pipeline in plan.pipelines) + len(plan.idle_ranks) == (
        plan.world_size
    ):
        return  # each rank is in one pipeline at most, as the placement is sound
    first: dict[int, tuple[int, tuple[int, int, int, int]]] = {}
    for index, pipeline in enumerate(plan.pipelines):
        scheme = pipeline.scheme
        for index_in_pipeline, rank in enumerate(pipeline.ranks):
            coordinates = Coordinates.from_rank_index(scheme, index_in_pipeline)
            shard = (scheme.tp, scheme.pp, coordinates.tp, coordinates.pp)
            other, known = first.setdefault(rank, (index, shard))
            if known == shard:
                continue
            if known[:2] != shard[:2]:
                yield (
                    f"rank {rank}: tp {known[0]}, pp {known[1]} in pipeline {other}, but "
                    f"tp {shard[0]}, pp {shard[1]} in pipeline {index}"
                )
            else:
                yield (
                    f"rank {rank}: tp index {known[2]}, stage {known[3]} in pipeline {other}, but "
                    f"tp index {shard[2]}, stage {shard[3]} in pipeline {index}"
                )
            break


def _groups(plan: Plan) -> Iterator[str]:
    expected = process_groups(plan.pipelines)
    if plan.groups == expected:
        return
    listed, derived = set(plan.groups), set(expected)
    if len(listed) != len(plan.groups):
        yield "groups: a group is listed twice"
    if missing := [group for group in expected if group not in listed]:
        yield f"groups: {_shown(missing[0])} is missing ({len(missing)} such groups)"
    if foreign := [group for group in plan.groups if group not in derived]:
        yield f"groups: {_shown(foreign[0])} is of no pipeline ({len(foreign)} such groups)"
    if not missing and not foreign and len(plan.groups) == len(expected):
        yield "groups: they are not in creation order"


def _shown(group: tuple[int, ...]) -> str:
    return str(list(group)) if len(group) <= 8 else f"[{group[0]}, …, {group[-1]}]"


def _profile(plan: Plan, costs: Mapping[Scheme, SchemeCost], lengths_of: _Lengths) -> Iterator[str]:
    loads = [load for load in plan.loads if len(load.work_ms) == len(plan.lengths)]
    for index, pipeline in enumerate(plan.pipelines):
        scheme_cost = costs.get(pipeline.scheme)
        if scheme_cost is None:
            yield f"pipeline {index}: the profile has no scheme {pipeline.scheme}"
            continue
        yield from _check_windows(index, pipeline, scheme_cost)
        whole = holds_whole_blocks(pipeline.scheme, pipeline.ranks, plan.expert_parallel)
        for number, batch in enumerate(pipeline.micro_batches):
            place = f"pipeline {index} micro-batch {number}"
            cost = scheme_cost.find_mode(batch.recompute)
            if cost is None:
                yield (
                    f"{place}: the profile has no recomputation mode {batch.recompute} of "
                    f"{pipeline.scheme}"
                    if batch.recompute
                    else f"{place}: has no recomputation mode, of which the profile has several"
                )
                continue
            if batch.padded_tokens > cost.max_len:
                yield (
                    f"{place}: {batch.padded_tokens} padded tokens exceed MaxLen {cost.max_len} "
                    f"of {pipeline.scheme}"
                )
            lengths = lengths_of[index][number]
            if lengths is None:
                continue
            a, b = cost.a, cost.b
            expected = sum([length * (a * length + b) for length in lengths]) + cost.c
            if plan.shapes:
                expected += b * count_added(pipeline.scheme, lengths, batch.padded_tokens)
            if loads:
                expected += time_loads(loads, pipeline.scheme, batch.sequences)
            expected *= pipeline.slowdown
            if not abs(batch.cost_ms - expected) <= 3 * ROUNDING_MS + 1e-9 * expected:
                yield f"{place}: cost_ms {batch.cost_ms}, but the profile gives {expected:.3f}"
            shared = 0.0 if whole else cost.b_shared * batch.tokens
            if not abs(batch.shared_ms - shared) <= 2 * ROUNDING_MS + 1e-9 * shared:
                yield f"{place}: shared_ms {batch.shared_ms}, but the profile gives {shared:.3f}"


def _check_windows(index: int, pipeline: PlannedPipeline, scheme_cost: SchemeCost) -> Iterator[str]:
    """Check the memory of micro-batches that several stages have in flight together."""
    pp, batches = pipeline.scheme.pp, pipeline.micro_batches
    if pp == 1 or len({batch.recompute for batch in batches}) < 2:
        return
    parts = []
    for batch in batches:
        cost = scheme_cost.find_mode(batch.recompute)
        if cost is None or cost.max_len < 1:
            return  # reported with its micro-batch
        parts.append((batch.padded_tokens / cost.max_len, cost.kept_share))
    for first in range(max(len(parts) - pp + 1, 1)):
        share = window_share(parts[first : first + pp], pp)
        if share > 1 + 1e-9:
            yield (
                f"pipeline {index} micro-batches {first} … {min(first + pp, len(parts)) - 1}: in "
                f"flight together, they need {percent(share)} of the memory"
            )


def _pipeline_times(plan: Plan) -> Iterator[str]:
    for index, pipeline in enumerate(plan.pipelines):
        least = _least_ms(pipeline)
        # Each of the rounded costs and the rounded sum may be off.
        terms = len(pipeline.micro_batches) + pipeline.scheme.pp + 1
        if not pipeline.predicted_ms >= least - terms * ROUNDING_MS - 1e-9 * least:
            yield (
                f"pipeline {index}: predicted_ms {pipeline.predicted_ms} is below its "
                f"micro-batches' {least:.3f}"
            )


def _least_ms(pipeline: PlannedPipeline) -> float:
    """Bound a pipeline's time: all costs on one stage, and the largest on every stage (ms)."""
    times = [batch.cost_ms for batch in pipeline.micro_batches]
    return max(sum(times), pipeline.scheme.pp * max(times, default=0.0))


def _step_times(plan: Plan) -> Iterator[str]:
    # Every duration lowered by its rounding: what remains is a bound on the unrounded schedule.
    durations = [max(0.0, pipeline.predicted_ms - ROUNDING_MS) for pipeline in plan.pipelines]
    makespan = schedule(plan.pipelines, durations, plan.expert_parallel).makespan_ms
    predicted, bound = plan.predicted_ms, plan.lower_bound_ms
    if not predicted >= makespan - 2 * ROUNDING_MS - 1e-9 * makespan:
        yield f"predicted_ms: {predicted} is below the schedule of the pipelines, {makespan:.3f}"
    if not 0 <= bound <= predicted:
        yield f"lower_bound_ms: {bound} is outside 0 … predicted_ms = {predicted}"
    elif bound > 0:
        gap = predicted / bound - 1
        if not abs(plan.gap - gap) <= 1e-6:
            yield f"gap: {plan.gap}, but predicted_ms / lower_bound_ms − 1 is {gap:.7f}"
    elif predicted > _MICROSECOND:
        yield f"lower_bound_ms: 0 bounds nothing of predicted_ms = {predicted}"
    elif plan.gap != 0:
        yield f"gap: {plan.gap}, but predicted_ms and lower_bound_ms are both 0"
    if (layout := plan.layout_lower_bound_ms) is not None and not 0 <= layout <= bound:
        yield f"layout_lower_bound_ms: {layout} is outside 0 … lower_bound_ms = {bound}"


def _selection(plan: Plan) -> Iterator[str]:
    for index, entry in enumerate(plan.selection):
        place = f"selection {index} ({entry.strategy})"
        if not entry.lower_bound_ms >= 0:
            yield f"{place}: lower_bound_ms {entry.lower_bound_ms} is negative"
        if entry.predicted_ms is not None and not entry.predicted_ms >= entry.lower_bound_ms:
            yield (
                f"{place}: predicted_ms {entry.predicted_ms} is below its lower_bound_ms "
                f"{entry.lower_bound_ms}"
            )
        if entry.strategy.gpus > plan.world_size:
            yield f"{place}: needs {entry.strategy.gpus} GPUs, the world has {plan.world_size}"
