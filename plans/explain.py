"""Describe a plan: one step as text for a terminal, at most 100 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seqplan.plans.lint import SchemeCost
from seqplan.plans.percent import percent, wrap_text
from seqplan.plans.plan import Considered, Plan, PlannedPipeline, check_plan
from seqplan.plans.ranges import ranges_text
from seqplan.plans.recomputation_cost import describe_recomputation
from seqplan.plans.schedule import Schedule, schedule, stages_of_micro_steps
from seqplan.plans.scheme import Scheme, Strategy
from seqplan.plans.shapes import count_added, sum_least_sizes

WIDTH = 100
"""Columns of the text, at most."""

ROWS = 6
"""Pipelines of one scheme that get a separate row, the tightest first."""

CHANGE_MS = 3.0
"""Assumed cost of a change of groups within the step, for the cost of all."""

BINDING_MS = 0.001
"""Slack below the rounding of the plan's times is none."""

_WRAP: dict[str, Any] = {"subsequent_indent": "  ", "break_on_hyphens": False}

MAIN_PHASE = "language model"
"""Name of the phase that lengths are of."""


def explain(plan: Plan, costs: Mapping[Scheme, SchemeCost] | None = None) -> str:
    """Describe pipelines, what bounds the step, and the strategies considered.

    ``costs`` adds how full the fullest micro-batch is and names the binding sequence by its time
    instead of its tokens. Works on a plan that ``lint`` rejects, as far as its positions are
    in range. Lines end in ``\\n``, all but the last.
    """
    check_plan(plan)
    times = schedule(plan.pipelines, expert_parallel=plan.expert_parallel)
    lines = [*_headline(plan, times), ""]
    lines += [*_pipelines(plan, times, costs or {}), ""]
    sentences = [*_binding(plan, times, costs or {}), *_long(plan, costs or {})]
    sentences += _loads(plan, times)
    sentences += describe_recomputation(plan, costs or {})
    lines += [part for sentence in sentences for part in wrap_text(sentence, WIDTH, **_WRAP)]
    if plan.idle_ranks:
        lines.append(f"idle: {_count(plan.idle_ranks, 'rank')} ({_ranks(plan.idle_ranks, 60)})")
    if plan.selection:
        lines += ["", *_candidates(plan)]
    return "\n".join(_cut(line, WIDTH) for line in lines)


def _headline(plan: Plan, times: Schedule) -> Iterable[str]:
    strategy = plan.strategy
    yield (
        f"step {plan.step}: {plan.tokens:,} tokens in {_count(plan.lengths, 'sequence')} on "
        f"{plan.world_size:,} ranks"
    )
    yield (
        f"predicted {plan.predicted_ms:,.1f} ms, lower bound {plan.lower_bound_ms:,.1f} ms, "
        f"gap {percent(plan.gap, 2)}"
    )
    if (stages := stages_of_micro_steps(plan.pipelines)) > 1:
        yield f"  of Σ micro-steps + {stages - 1} × the longest, which may be above the simulation"
    yield from _slow_ranks(plan)
    if plan.provenance.robust:
        off = f"{100 * plan.provenance.robust:g} %"
        yield f"planned for a, b or c of the costs that are off by {off}"
    if plan.layout_gap is not None and plan.layout_lower_bound_ms != plan.lower_bound_ms:
        yield (
            f"over all plans of its tp and pp: lower bound {plan.layout_lower_bound_ms:,.1f} ms, "
            f"gap {percent(plan.layout_gap, 2)}"
        )
    if plan.sync_ms is not None:
        yield (
            f"and {plan.sync_ms:,.1f} ms sync of parameters and gradients that nothing "
            f"hides: {plan.predicted_ms + plan.sync_ms:,.1f} ms in all"
        )
    rest = plan.predicted_ms - times.makespan_ms
    if rest > BINDING_MS:
        yield f"  of that {times.makespan_ms:,.1f} ms pipelines, {rest:,.1f} ms after the last"
    yield from _shapes(plan)
    micro_steps = {pipeline.micro_step for pipeline in plan.pipelines} - {None}
    notes = f", in {_count(micro_steps, 'micro-step')}" if micro_steps else ""
    if stages > 1:
        notes += f" through {stages} stages"
    changes = _changes(plan.pipelines)
    if changes:
        notes += ", ranks regroup within the step"
    if plan.expert_parallel > 1:
        notes += f", experts on {plan.expert_parallel} ranks"
    room = WIDTH - len("pipelines ") - len(notes)
    yield f"pipelines {_cut(str(strategy) or 'none', room)}{notes}"
    if any(batch.shared_ms for p in plan.pipelines for batch in p.micro_batches):
        yield (
            "  time ms counts the experts' work of a pipeline's tokens; ranks of a block share "
            "that work evenly"
        )
        yield "  slack ms is how much longer any micro-batch could take without a later end"
    if changes and not micro_steps and times.makespan_ms > 0:
        yield _changes_cost(plan, changes, times)


def _slow_ranks(plan: Plan) -> Iterable[str]:
    """Name lost ranks and the slow pipelines, with the speed that they lack."""
    if plan.lost_ranks:
        idle = len(plan.idle_ranks) - len(plan.lost_ranks)
        lost = _ranks(plan.lost_ranks, 30)
        yield f"lost ranks {lost}: planned on the other {plan.gpus_left}, of which {idle} idle"
    slow = [pipeline for pipeline in plan.pipelines if pipeline.slowdown > 1]
    if not slow:
        return
    gpus = sum(len(pipeline.ranks) for pipeline in plan.pipelines)
    speed = sum(len(pipeline.ranks) / pipeline.slowdown for pipeline in plan.pipelines)
    slowest = max(slow, key=lambda pipeline: pipeline.slowdown)
    yield (
        f"{_count(slow, 'pipeline')} of slow ranks, up to {slowest.slowdown:g} × "
        f"({_ranks(slowest.ranks, 30)}): {percent(1 - speed / gpus)} less speed, up to "
        f"{percent(slowest.slowdown - 1, 0)} more time if ignored"
    )


def _shapes(plan: Plan) -> Iterable[str]:
    """Yield how many shapes are in use and the tokens that they add."""
    if not plan.shapes:
        return
    batches = [(p.scheme, batch) for p in plan.pipelines for batch in p.micro_batches]
    total = sum(batch.padded_tokens for _, batch in batches)
    added = sum(
        count_added(scheme, [plan.lengths[i] for i in batch.sequences], batch.padded_tokens)
        for scheme, batch in batches
    )
    in_use = {batch.padded_tokens // scheme.sp for scheme, batch in batches}
    sizes = {shape * scheme.sp for scheme, _ in batches for shape in plan.shapes}
    least = sum_least_sizes(plan.tokens, sizes) if sizes else 0
    yield (
        f"{len(in_use)} of {_count(plan.shapes, 'shape')}, up to {max(plan.shapes):,} tokens a "
        f"rank: {percent(added / max(total, 1), 2)} of the tokens are padding to them"
    )
    if plan.tokens:
        yield (
            f"  with all padding {percent(total / plan.tokens - 1, 2)} extra tokens, at least "
            f"{percent(least / plan.tokens - 1, 2)} with these shapes and schemes"
        )


def _changes(pipelines: Sequence[PlannedPipeline]) -> set[int]:
    """Collect the pipelines with a rank that was in another group just before."""
    changes, group_of = set(), dict[int, tuple[int, ...]]()
    for index, pipeline in enumerate(pipelines):
        if any(group_of.get(rank, pipeline.ranks) != pipeline.ranks for rank in pipeline.ranks):
            changes.add(index)
        group_of.update(dict.fromkeys(pipeline.ranks, pipeline.ranks))
    return changes


def _changes_cost(plan: Plan, changes: set[int], times: Schedule) -> str:
    slower = [
        pipeline.predicted_ms + CHANGE_MS * (index in changes)
        for index, pipeline in enumerate(plan.pipelines)
    ]
    later = schedule(plan.pipelines, slower, plan.expert_parallel)
    longer = later.makespan_ms / times.makespan_ms - 1
    return (
        f"  groups change {_count(changes, 'time')}: were each to take {CHANGE_MS:.0f} ms, the "
        f"pipelines would end {percent(longer, 2)} later"
    )


def _pipelines(plan: Plan, times: Schedule, costs: Mapping[Scheme, SchemeCost]) -> Iterable[str]:
    in_lockstep = any(pipeline.micro_step is not None for pipeline in plan.pipelines)
    late = any(start > BINDING_MS for start in times.start_ms)
    middle = ["micro-step"] if in_lockstep else ["start ms"] if late else []
    fill = ["fill"] if costs else []
    header = ["scheme", "#", "ranks", "batches", "seqs", "longest", "tokens", *fill, *middle]
    rows = [[*header, "time ms", "slack ms"]]
    by_scheme: dict[Scheme, list[int]] = {}
    for index, pipeline in enumerate(plan.pipelines):
        by_scheme.setdefault(pipeline.scheme, []).append(index)
    for scheme, indexes in by_scheme.items():
        indexes.sort(key=lambda index: (round(times.slack_ms[index], 3), index))
        # A separate row costs no more lines than a summary of one.
        shown = len(indexes) if len(indexes) <= ROWS + 1 else ROWS
        for place, index in enumerate(indexes[:shown]):
            pipeline = plan.pipelines[index]
            row = [
                str(scheme) if place == 0 else "",
                str(index),
                _ranks(pipeline.ranks, 12),
            ]
            row += _load(plan, [pipeline], costs)
            if middle:
                row.append(
                    str(pipeline.micro_step) if in_lockstep else f"{times.start_ms[index]:,.1f}"
                )
            row += [f"{pipeline.predicted_ms:,.1f}", f"{max(0.0, times.slack_ms[index]):,.1f}"]
            rows.append(row)
        if rest := indexes[shown:]:
            others = [plan.pipelines[index] for index in rest]
            row = ["", "", f"{len(rest):,} more", *_load(plan, others, costs)]
            row += [""] * len(middle)
            row.append(f"≤ {max(pipeline.predicted_ms for pipeline in others):,.1f}")
            rows.append([*row, f"≥ {times.slack_ms[rest[0]]:,.1f}"])
    return _table(rows, left=(0, 2))


def _load(
    plan: Plan, pipelines: Sequence[PlannedPipeline], costs: Mapping[Scheme, SchemeCost]
) -> list[str]:
    """List micro-batches, sequences, longest, tokens and, with costs, fill of these pipelines."""
    batches = [batch for pipeline in pipelines for batch in pipeline.micro_batches]
    lengths = [plan.lengths[position] for batch in batches for position in batch.sequences]
    cells = [
        f"{len(batches):,}",
        f"{len(lengths):,}",
        f"{max(lengths, default=0):,}",
        f"{sum(lengths):,}",
    ]
    if costs:
        cost = costs.get(pipelines[0].scheme)
        shares = [
            batch.padded_tokens / of_mode.max_len
            for batch in batches
            if cost is not None
            and (of_mode := cost.find_mode(batch.recompute) or cost)
            and of_mode.max_len > 0
        ]
        known = cost is not None and len(shares) == len(batches)
        cells.append(f"{percent(max(shares, default=0.0), 0)}" if known else "?")
    return cells


def _binding(plan: Plan, times: Schedule, costs: Mapping[Scheme, SchemeCost]) -> Iterable[str]:
    tight = [
        index
        for index, pipeline in enumerate(plan.pipelines)
        if times.slack_ms[index] < BINDING_MS and pipeline.predicted_ms > 0
    ]
    if not tight:
        runs = any(pipeline.micro_batches for pipeline in plan.pipelines)
        yield "binding: unknown, the plan states no times" if runs else "binding: nothing runs"
    for index in sorted(tight, key=lambda index: -plan.pipelines[index].predicted_ms)[:3]:
        pipeline = plan.pipelines[index]
        ranks = f"rank{'s' if len(pipeline.ranks) > 1 else ''} {_ranks(pipeline.ranks, 15)}"
        yield (
            f"binding: pipeline {index} ({pipeline.scheme} on {ranks}), "
            f"{_reason(plan, pipeline, costs.get(pipeline.scheme))}"
        )
    if len(tight) > 3:
        yield f"binding: {_count(tight[3:], 'more pipeline')} without slack"


def _loads(plan: Plan, times: Schedule) -> Iterable[str]:
    """Yield the time of each phase on the pipeline that binds."""
    if not plan.loads:
        return
    pipeline = plan.pipelines[times.end_ms.index(max(times.end_ms))]
    total_ms = sum(batch.cost_ms for batch in pipeline.micro_batches)
    parts = [
        (
            pipeline.slowdown
            * sum(
                load.time_micro_batch(pipeline.scheme, batch.sequences)
                for batch in pipeline.micro_batches
            ),
            load.name,
        )
        for load in plan.loads
    ]
    parts.append((total_ms - sum(ms for ms, _ in parts), MAIN_PHASE))
    text = ", ".join(f"{name} {ms:,.1f} ms" for ms, name in parts)
    yield f"phases of the slowest pipeline: {text}; {max(parts)[1]} binds"


def _long(plan: Plan, costs: Mapping[Scheme, SchemeCost]) -> Iterable[str]:
    """Yield how many of the longest sequences need groups that rarely fit side by side."""
    layouts = {(pipeline.scheme.tp, pipeline.scheme.pp) for pipeline in plan.pipelines}
    held: dict[int, int] = {}
    for scheme, cost in costs.items():
        if (scheme.tp, scheme.pp) in layouts:
            held[scheme.gpus] = max(held.get(scheme.gpus, 0), cost.max_len)
    below = 0
    for gpus, longest in sorted(held.items()):
        longer = sum(length > below for length in plan.lengths)
        places = plan.gpus_left // gpus
        if below and longer > places > 0:
            yield (
                f"long: {longer:,} sequences need groups of {gpus:,} GPUs or more, of which "
                f"{places:,} fit side by side: {-(-longer // places):,} in a row"
            )
        below = max(below, longest)


def _reason(plan: Plan, pipeline: PlannedPipeline, cost: SchemeCost | None) -> str:
    """Whether the pipeline's longest sequence or its total makes it as slow as it is."""
    lengths = [
        plan.lengths[position] for batch in pipeline.micro_batches for position in batch.sequences
    ]
    if not lengths:
        return "which has no sequences"
    longest = max(lengths)
    if cost is None:
        share, of_what = longest / sum(lengths), "tokens"
    else:
        cost = cost.find_mode(_mode_of(plan, pipeline, longest)) or cost
        alone = pipeline.scheme.pp * (longest * (cost.a * longest + cost.b) + cost.c)
        share = min(1.0, pipeline.slowdown * alone / pipeline.predicted_ms)
        of_what = "time"
    if len(lengths) == 1:
        return f"by its only sequence, {longest:,} tokens"
    part = f"{percent(share, 0)} of its {of_what}"
    if share >= 0.5:
        return f"by its longest sequence: {longest:,} tokens, {part}"
    return f"by its total: the longest of {len(lengths):,} sequences is {part}"


def _mode_of(plan: Plan, pipeline: PlannedPipeline, length: int) -> str | None:
    """Return the recomputation mode of the first micro-batch with a sequence of this length."""
    return next(
        batch.recompute
        for batch in pipeline.micro_batches
        if any(plan.lengths[position] == length for position in batch.sequences)
    )


def _verdict(entry: Considered, best: Considered | None) -> str:
    """Describe why a candidate was not chosen.

    One that is faster than the best was left for the gradient sync between
    its replicas, which its time does not hold.
    """
    best_ms = None if best is None else best.predicted_ms
    if best is None or best_ms is None:
        return "slower" if entry.predicted_ms is not None else "no better plan found"
    if entry.predicted_ms is not None:
        return "its sync takes longer" if entry.predicted_ms < best_ms else ""
    extra_sync_ms = (entry.sync_ms or 0.0) - (best.sync_ms or 0.0)
    beaten = entry.lower_bound_ms + extra_sync_ms >= best_ms
    return "pruned by its bound" if beaten else "no better plan found"


def _candidates(plan: Plan) -> Iterable[str]:
    weighed = any(entry.sync_ms is not None for entry in plan.selection)
    rows = [["candidate strategy", "bound ms", "time ms", *(["sync"] if weighed else []), ""]]
    chosen = Strategy.from_counts(Counter(pipeline.scheme for pipeline in plan.pipelines))
    best = next((entry for entry in plan.selection if entry.strategy == chosen), None)
    for entry in plan.selection:
        verdict = "best" if entry.strategy == chosen else _verdict(entry, best)
        sync = "–" if entry.sync_ms is None else f"{entry.sync_ms:,.1f}"
        rows.append(
            [
                _cut(str(entry.strategy) or "none", WIDTH - (52 if weighed else 42)),
                f"{entry.lower_bound_ms:,.1f}",
                _word_time(entry, chosen),
                *([sync] if weighed else []),
                verdict,
            ]
        )
    yield from _table(rows, left=(0, len(rows[0]) - 1))
    if any(row[2].startswith("≈") for row in rows):
        yield "≈: an estimate, as of strategies with stages only the best is simulated"


def _word_time(entry: Considered, chosen: Strategy) -> str:
    """Word the time of a candidate (ms): with stages an estimate, unless chosen."""
    if entry.predicted_ms is None:
        return "–"
    staged = any(scheme.pp > 1 for scheme, _ in entry.strategy.counts)
    return f"{'≈' if staged and entry.strategy != chosen else ''}{entry.predicted_ms:,.1f}"


def _table(rows: list[list[str]], left: tuple[int, ...]) -> Iterable[str]:
    """Align the columns of rows; those in ``left`` to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _ranks(ranks: Iterable[int], room: int) -> str:
    """Write ranks as ``0–3, 8``, cut to ``room`` characters."""
    return _cut(ranges_text(ranks), room)


def _count(
    counted: Sequence[object] | set[int] | set[int | None], noun: str, plural: str | None = None
) -> str:
    return f"{len(counted):,} {noun if len(counted) == 1 else plural or f'{noun}s'}"


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"
