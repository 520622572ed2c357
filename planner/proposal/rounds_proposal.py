"""What is proposed for steps in rounds: a layout, and what static groups of it would do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.errors import Infeasible
from seqplan.planner.exchange.times import Exchange, Layout, layout_text
from seqplan.planner.placement.fleet import Models
from seqplan.planner.proposal.candidates import Progress, Proposal, Proposed
from seqplan.planner.proposal.layouts import LayoutChoice, LayoutRow, LayoutTimes, against_static
from seqplan.planner.rounds.best_layout import best_rounds, exposed_ms, layout_bound_ms, of_layouts
from seqplan.planner.rounds.plan_rounds import plan_rounds
from seqplan.plans.scheme import Scheme, Strategy


def propose_rounds(
    batches: Sequence[Batch],
    models: Models,
    *,
    gpus: int,
    max_len: int,
    exchange: Exchange | None,
    multiple: int,
    progress: Progress | None,
) -> Proposal:
    """Propose the layout whose rounds take the least mean time over ``batches``, with its exchange.

    A candidate is one context-parallel degree of it throughout, which tells how static groups would
    do: steps choose their own. The proposal's expected time is that of the rounds planned freely.
    ``exchange``: None under ZeRO-3, where there is one layout and nothing to say of it.
    """
    report = progress or (lambda stage, done, total: None)
    layouts = of_layouts(models)
    bounds = {
        layout: [layout_bound_ms(batch, own, gpus, exchange) for batch in batches]
        for layout, own in layouts.items()
    }
    times = _layout_times(batches, models, gpus, max_len, exchange, multiple, bounds, report)
    if not times:
        raise Infeasible(f"a sequence of {max_len} tokens fits no group")
    chosen = min(times, key=lambda layout: (times[layout], layout))
    own = {model.scheme: model for model in layouts[chosen]}
    static = _static_times(batches, own, gpus, multiple, report)
    added = exposed_ms(exchange, chosen, 2)
    best = np.min(np.array(list(static.values())), axis=0)
    candidates = [
        Proposed(
            Strategy.of({scheme: gpus // scheme.gpus}),
            max_sequence=own[scheme].max_sequence,
            expected_ms=float(np.mean([t for t in of if np.isfinite(t)] or [np.nan])) + added,
            runs=float(np.isfinite(of).mean()),
            wins=float((np.array(of) <= best).mean()),
        )
        for scheme, of in static.items()
    ]
    of_batches = zip(*bounds.values(), strict=True)
    lower = np.mean([min(b for b in of if b is not None) for of in of_batches])
    return Proposal(
        candidates=tuple(candidates),
        expected_ms=times[chosen],
        pool_ms=times[chosen],
        lower_bound_ms=min(float(lower), times[chosen]),
        judged=len(batches),
        explored=0,
        layouts=None if exchange is None else _choice(chosen, times, candidates, exchange),
    )


def _layout_times(
    batches: Sequence[Batch],
    models: Models,
    gpus: int,
    max_len: int,
    exchange: Exchange | None,
    multiple: int,
    bounds: dict[Layout, list[float | None]],
    report: Progress,
) -> dict[Layout, float]:
    """Plan each layout that holds ``max_len`` and is not proven slower: its mean time (ms)."""
    layouts = of_layouts(models)
    holding = {
        layout: float(np.mean([bound for bound in bounds[layout] if bound is not None]))
        for layout, own in layouts.items()
        if max(model.max_sequence for model in own) >= max_len
    }
    times: dict[Layout, float] = {}
    for done, layout in enumerate(sorted(holding, key=lambda layout: (holding[layout], layout))):
        report("planning rounds", done, len(holding))
        if times and holding[layout] >= min(times.values()):
            continue
        planned = [
            best_rounds(batch, [layouts[layout]], gpus, exchange, multiple) for batch in batches
        ]
        times[layout] = float(
            np.mean([rounds.total_ms for rounds in planned if rounds is not None])
        )
    report("planning rounds", len(holding), len(holding))
    return times


def _static_times(
    batches: Sequence[Batch], models: Models, gpus: int, multiple: int, report: Progress
) -> dict[Scheme, list[float]]:
    """Plan rounds of one scheme throughout: each batch's time (ms), infinite where it cannot."""
    times: dict[Scheme, list[float]] = {scheme: [] for scheme in models}
    for done, batch in enumerate(batches):
        report("planning static groups", done, len(batches))
        for scheme, of in times.items():
            alone = plan_rounds(batch, [models[scheme]], gpus, multiple)
            of.append(float("inf") if alone is None else alone.objective_ms)
    report("planning static groups", len(batches), len(batches))
    return times


def _choice(
    chosen: Layout,
    times: dict[Layout, float],
    candidates: Sequence[Proposed],
    exchange: Exchange,
) -> LayoutChoice:
    ranked = sorted(times.items(), key=lambda entry: (entry[1], entry[0]))
    why = [
        (
            f"one layout, {layout_text(chosen)}, in lockstep: each round forms groups of its own "
            "Ulysses and ring degrees, and all ranks wait for the slowest."
        )
    ]
    if len(ranked) > 1:
        layout, other_ms = ranked[1]
        more = other_ms / times[chosen] - 1
        why.append(f"The next is {layout_text(layout)}, {more:+.1%} in time.")
    always = [c for c in candidates if c.runs == 1.0]
    best = min(always, key=lambda c: (c.expected_ms, str(c.strategy)), default=None)
    static = None if best is None else (best.strategy, best.expected_ms)
    why.append(against_static(times[chosen], LayoutTimes(times, times[chosen], static)))
    return LayoutChoice(
        layout_text(chosen),
        tuple(why),
        tuple(
            LayoutRow(*layout, round(exposed_ms(exchange, layout, 2), 3), round(ms, 3))
            for layout, ms in ranked
        ),
        None if static is None else str(static[0]),
        None if static is None else round(static[1], 3),
    )
