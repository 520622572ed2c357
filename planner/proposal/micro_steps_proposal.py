"""Propose for steps in micro-steps: a layout, and the times of its static groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import mean

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.errors import Infeasible
from seqplan.planner.lockstep.best_layout import (
    LayoutMicroSteps,
    best_micro_steps,
    compute_exposed_ms,
    layout_bound_ms,
    of_layouts,
)
from seqplan.planner.placement.fleet import Models
from seqplan.planner.proposal.candidates import CandidatePool, Progress
from seqplan.planner.proposal.kept_strategies import Proposed
from seqplan.planner.proposal.layouts import (
    ONE_LAYOUT,
    LayoutChoice,
    LayoutRow,
    choose_layout,
)
from seqplan.planner.proposal.scenarios import LayoutTimes, Scenarios, flips
from seqplan.planner.proposal.static_micro_steps import best_static_micro_steps
from seqplan.planner.sync.times import Layout, SyncTimes, layout_text
from seqplan.plans.percent import percent
from seqplan.plans.scheme import Scheme, Strategy


def propose_micro_steps(
    batches: Sequence[Batch],
    models: Models,
    *,
    gpus: int,
    max_len: int,
    sync: SyncTimes | None,
    multiple: int,
    derived: Collection[Scheme] = (),
    progress: Progress | None,
) -> CandidatePool:
    """Propose the layout whose micro-steps take the least mean time with sync.

    Of those within ``ONE_LAYOUT`` of it, the one that loses least at other costs. A candidate is
    one context-parallel degree of it throughout, the time of static groups: steps choose others.
    The proposal's expected time is that of the micro-steps planned freely.
    ``sync``: None under ZeRO-3, which has one layout and nothing to report of it.
    ``derived``: the schemes whose costs nobody has measured.
    """
    report = progress or (lambda stage, done, total: None)
    layouts = of_layouts(models)
    bounds = {
        layout: [layout_bound_ms(batch, of_layout, gpus, sync) for batch in batches]
        for layout, of_layout in layouts.items()
    }
    planned = _layout_micro_steps(batches, models, gpus, max_len, sync, multiple, bounds, report)
    times = {
        layout: mean(micro_steps.total_ms for micro_steps in of) for layout, of in planned.items()
    }
    synchronized = {
        layout: mean(micro_steps.sync_ms for micro_steps in of) for layout, of in planned.items()
    }
    if not times:
        raise Infeasible(
            f"a sequence of {max_len} tokens fits no group. Use larger groups or a shorter context"
        )
    chosen, scenarios = min(times, key=lambda layout: (times[layout], layout)), None
    if sync is not None:
        scenarios = _scenarios(batches, models, gpus, max_len, sync, derived)
        compared = LayoutTimes(times, times[chosen], None, synchronized)
        chosen = choose_layout(compared, scenarios) or chosen
    of_layout = {model.scheme: model for model in layouts[chosen]}
    static = _static_times(batches, of_layout, gpus, sync, multiple, report)
    of_batches = zip(*bounds.values(), strict=True)
    lower = np.mean([min(b for b in of if b is not None) for of in of_batches])
    return CandidatePool(
        candidates=_describe_static(static, of_layout, gpus),
        expected_ms=times[chosen],
        pool_ms=times[chosen],
        lower_bound_ms=min(float(lower), times[chosen]),
        judged=len(batches),
        layouts=(
            None
            if sync is None or scenarios is None
            else _choice(
                chosen,
                times,
                synchronized,
                best_static_micro_steps(batches, models, gpus, max_len, sync, multiple),
                scenarios,
            )
        ),
    )


def _describe_static(
    static: Mapping[Scheme, Sequence[float]], models: Models, gpus: int
) -> tuple[Proposed, ...]:
    """Describe static groups of each degree by their times on the batches (ms)."""
    best = np.min(np.array(list(static.values())), axis=0)
    return tuple(
        Proposed(
            Strategy.from_counts({scheme: gpus // scheme.gpus}),
            max_sequence=models[scheme].max_sequence,
            expected_ms=float(np.mean([t for t in of if np.isfinite(t)] or [np.nan])),
            runs=float(np.isfinite(of).mean()),
            wins=float((np.array(of) <= best).mean()),
        )
        for scheme, of in static.items()
    )


def _layout_micro_steps(
    batches: Sequence[Batch],
    models: Models,
    gpus: int,
    max_len: int,
    sync: SyncTimes | None,
    multiple: int,
    bounds: dict[Layout, list[float | None]],
    report: Progress,
) -> dict[Layout, list[LayoutMicroSteps]]:
    """Plan each layout that holds ``max_len`` and is not proven slower, batch by batch."""
    layouts = of_layouts(models)
    holding = {
        layout: float(np.mean([bound for bound in bounds[layout] if bound is not None]))
        for layout, of_layout in layouts.items()
        if max(model.max_sequence for model in of_layout) >= max_len
    }
    planned: dict[Layout, list[LayoutMicroSteps]] = {}
    least_ms = float("inf")
    for done, layout in enumerate(sorted(holding, key=lambda layout: (holding[layout], layout))):
        report("planning micro-steps", done, len(holding))
        if holding[layout] >= least_ms:
            continue
        of_batches = [
            best_micro_steps(batch, [layouts[layout]], gpus, sync, multiple) for batch in batches
        ]
        planned[layout] = [micro_steps for micro_steps in of_batches if micro_steps is not None]
        least_ms = min(least_ms, mean(micro_steps.total_ms for micro_steps in planned[layout]))
    report("planning micro-steps", len(holding), len(holding))
    return planned


def _static_times(
    batches: Sequence[Batch],
    models: Models,
    gpus: int,
    sync: SyncTimes | None,
    multiple: int,
    report: Progress,
) -> dict[Scheme, list[float]]:
    """Plan micro-steps of one scheme throughout: each batch's time with sync (ms), infinite if
    it cannot."""
    times: dict[Scheme, list[float]] = {scheme: [] for scheme in models}
    for done, batch in enumerate(batches):
        report("planning static groups", done, len(batches))
        for scheme, of in times.items():
            alone = best_micro_steps(batch, [[models[scheme]]], gpus, sync, multiple)
            of.append(float("inf") if alone is None else alone.total_ms)
    report("planning static groups", len(batches), len(batches))
    return times


def _scenarios(
    batches: Sequence[Batch],
    models: Models,
    gpus: int,
    max_len: int,
    sync: SyncTimes,
    derived: Collection[Scheme],
) -> Scenarios:
    """Estimate what micro-steps of each layout would take at other costs."""

    def bound_ms(of_layout: Models) -> float:
        bounds = [layout_bound_ms(batch, list(of_layout.values()), gpus, None) for batch in batches]
        return float(np.mean([bound for bound in bounds if bound is not None]))

    return Scenarios(
        models, max_len, bound_ms, lambda layout: compute_exposed_ms(sync, layout, 1), derived
    )


def _choice(
    chosen: Layout,
    times: dict[Layout, float],
    synchronized: dict[Layout, float],
    static: tuple[Strategy, float] | None,
    scenarios: Scenarios,
) -> LayoutChoice:
    ranked = sorted(times.items(), key=lambda entry: (entry[1], entry[0]))
    why = [
        (
            f"one layout, {layout_text(chosen)}, in lockstep: each micro-step forms groups of "
            "separate "
            "Ulysses and ring degrees, and all ranks wait for the slowest."
        )
    ]
    if others := [entry for entry in ranked if entry[0] != chosen]:
        layout, other_ms = others[0]
        more = other_ms / times[chosen] - 1
        why.append(f"The next is {layout_text(layout)}, {percent(more, 1, '+')} in time.")
    compared = LayoutTimes(times, times[chosen], static, synchronized)
    why.append(flips(chosen, compared, scenarios, ONE_LAYOUT))
    return LayoutChoice(
        layout_text(chosen),
        tuple(why),
        tuple(
            LayoutRow(*layout, round(synchronized[layout], 3), round(ms, 3))
            for layout, ms in ranked
        ),
        None if static is None else str(static[0]),
        None if static is None else round(static[1], 3),
    )
