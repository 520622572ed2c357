"""A comparison, a sweep and whether plans pay off, as text for people and as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from statistics import mean
from typing import TYPE_CHECKING, Any

from seqplan.api.cli.framework.output import count_of, seconds, table
from seqplan.planner.comparison import advice
from seqplan.planner.comparison.nearest import measure_speedup, nearest_rival
from seqplan.planner.comparison.results import Comparison, System, mean_compute_ms
from seqplan.planner.comparison.sweep import Sweep, SweptSystem
from seqplan.planner.simulation.iteration import Iteration
from seqplan.plans.percent import percent, wrap_text

if TYPE_CHECKING:
    from seqplan.costs.profile import Profile
    from seqplan.planner.comparison.nearest import Rival


def sweep_lines(sweep: Sweep) -> list[str]:
    """A row for each system, a column for each value: tokens/s, and how much faster ours is."""
    rows = []
    for key, name in sweep.names().items():
        row = [name]
        for point in sweep.points:
            system = next((system for system in point.systems if system.key == key), None)
            row.append("—" if system is None else _cell(system))
        rows.append(row)
    header = [f"tokens/s by {sweep.axis}", *(f"{point.value:,}" for point in sweep.points)]
    return table(header, rows) + sweep.notes()


def _cell(system: SweptSystem) -> str:
    if system.key == "ours":
        return f"{system.tokens_per_s:,.0f}"
    return f"{system.tokens_per_s:,.0f} ({system.speedup:.2f}×)"


def sweep_fields(sweep: Sweep) -> dict[str, Any]:
    """All figures of a sweep; ``speedup``: the system's mean iteration over ours."""
    return {
        "axis": sweep.axis,
        "points": [
            {
                "value": point.value,
                "tokens": point.tokens or None,
                "systems": [
                    {
                        "key": system.key,
                        "name": system.name,
                        **_round(system, {"mean_ms": 3}),
                        "mean_compute_ms": round(system.compute_ms, 3),
                        **_round(system, {"tokens_per_s": 1, "speedup": 4}),
                    }
                    for system in point.systems
                ],
                "left_out": [{"name": name, "why": why} for name, why in point.left_out],
                "not_possible": point.why or None,
            }
            for point in sweep.points
        ],
    }


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return lines of a comparison: a row for each system, skipped ones, and the advice."""
    steps = count_of(len(comparison.ours.iterations), "step")
    header = ("system", "iteration", "tokens/s", "ours is faster", "without sync")
    lines = [
        (
            f"simulated on profile {comparison.profile}: {comparison.gpus} × "
            f"{comparison.hardware}, {steps} of {comparison.tokens:,} tokens, "
            f"sequences up to {comparison.max_len:,}"
        ),
        "",
        *table(
            (*header, "imbalance", "bubble", "MFU"),
            [_row(comparison, system) for system in comparison.systems],
        ),
        f"ours is faster: by mean iterations; in parentheses the least and most of {steps}",
        "",
        *(f"{system.name}: {system.description}" for system in comparison.systems),
    ]
    if stages := advice.ablation(comparison.systems):
        text = " → ".join(f"{system.name} {gain:.2f}×" for system, gain in stages)
        lines += ["", f"step by step, whole iterations: {text}"]
    lines += [""] if advice.rivals(comparison.systems) else []
    nearest = nearest_rival(comparison.systems)
    for label, system in advice.rivals(comparison.systems):
        gain = f"{system.mean_ms / comparison.ours.mean_ms:.2f}×"
        if nearest is not None and system.key == nearest.key:
            gain = nearest.text
        lines.append(f"speed-up over {label}, {system.name}: {gain}")
    if comparison.today is not None:
        label, system = comparison.today
        gain = f"{system.mean_ms / comparison.ours.mean_ms:.2f}×"
        lines.append(f"speed-up over {label} ({system.name}): {gain}")
    if comparison.survival:
        lines.append(describe_survival(comparison))
    if comparison.left_out:
        lines += ["", *(f"left out: {name}: {why}" for name, why in comparison.left_out)]
    return [*lines, "", *comparison.assumptions, "", comparison.advice, *_fix_lines(comparison)]


def _fix_lines(comparison: Comparison) -> list[str]:
    """Name the options with which the steps stand for the data."""
    coverage = comparison.coverage
    if coverage is None or coverage.is_sufficient:
        return []
    return [f"Give --steps {coverage.epoch}, an epoch, or a smaller --max-len, for all sequences."]


def describe_survival(comparison: Comparison) -> str:
    """State what stays of the gain over the best static strategy if costs are off."""
    (_, gain), *others = comparison.survival
    name, least = min(others, key=lambda entry: entry[1])
    return (
        f"if a, b or c are off by {100 * comparison.survival_error:g} %: of a gain of "
        f"{percent(gain)} over the best static strategy {percent(least)} survives at the worst "
        f"({name})"
    )


def _row(comparison: Comparison, system: System) -> tuple[str, ...]:
    speedups = comparison.speedups(system)
    ours = system is comparison.ours
    alone = mean_compute_ms(system) / mean_compute_ms(comparison.ours)
    whole = system.mean_ms / comparison.ours.mean_ms
    return (
        system.name,
        seconds(system.mean_ms),
        f"{system.tokens_per_s:,.0f}",
        "—" if ours else f"{whole:.2f}× ({min(speedups):.2f}–{max(speedups):.2f})",
        "—" if ours else f"{alone:.2f}×",
        f"{mean(iteration.imbalance for iteration in system.iterations):.2f}",
        percent(mean(iteration.bubble_ratio for iteration in system.iterations)),
        "—" if system.mfu is None else percent(system.mfu),
    )


_SETTING = ("hardware", "gpus", "max_len", "tokens", "seed", "sequences")


def comparison_fields(comparison: Comparison) -> dict[str, Any]:
    """All figures of a comparison as JSON values, without the spans of the simulation."""
    nearest = nearest_rival(comparison.systems)
    return {
        "simulated_on": comparison.profile,
        **{name: getattr(comparison, name) for name in _SETTING},
        "histogram": [list(bucket) for bucket in comparison.histogram],
        "systems": [
            {
                "key": system.key,
                "name": system.name,
                "description": system.description,
                "balanced": system.balanced,
                **_round(system, {"mean_ms": 3}),
                "mean_compute_ms": round(mean_compute_ms(system), 3),
                **_round(system, {"tokens_per_s": 1, "mfu": 6}),
                "speedups": [round(ratio, 4) for ratio in comparison.speedups(system)],
                "iterations": [_iteration_fields(iteration) for iteration in system.iterations],
            }
            for system in comparison.systems
        ],
        "ablation": [
            {"key": system.key, "speedup": round(gain, 4)}
            for system, gain in advice.ablation(comparison.systems)
        ],
        "nearest_rival": None
        if nearest is None
        else {**_rival_fields(nearest), "steps": nearest.steps},
        "survival": [{"costs": name, "gain": round(gain, 4)} for name, gain in comparison.survival],
        "baseline": None if comparison.baseline is None else comparison.baseline[2],
        "left_out": [{"name": name, "why": why} for name, why in comparison.left_out],
        "advice": comparison.advice,
        "assumptions": list(comparison.assumptions),
    }


def _rival_fields(rival: Rival) -> dict[str, Any]:
    interval = None if rival.interval is None else [round(end, 4) for end in rival.interval]
    speedup = round(rival.speedup, 4)
    return {"key": rival.key, "name": rival.name, "speedup": speedup, "interval": interval}


_TIMES = {"total_ms": 3, "compute_ms": 3, "sync_ms": 3, "optimizer_ms": 3, "tokens_per_s": 1}


def _round(record: object, decimals: Mapping[str, int]) -> dict[str, float | None]:
    """Return the fields of a record that ``decimals`` names, rounded to so many."""
    values = {name: getattr(record, name) for name in decimals}
    return {
        name: None if value is None else round(value, decimals[name])
        for name, value in values.items()
    }


def _iteration_fields(iteration: Iteration) -> dict[str, Any]:
    return {
        "step": iteration.step,
        "strategy": iteration.strategy,
        "schemes": [{**scheme.as_dict(), "count": count} for scheme, count in iteration.schemes],
        "tokens": iteration.tokens,
        "sequences": iteration.sequences,
        "longest": iteration.longest,
        **_round(iteration, _TIMES),
        "rank_busy_ms": [round(time, 3) for time in iteration.rank_busy_ms],
        "rank_end_ms": [round(time, 3) for time in iteration.rank_end_ms],
        **_round(iteration, {"bubble_ratio": 6, "imbalance": 6, "mfu": 6}),
        "gap": iteration.gap,
        **_round(iteration, {"planning_ms": 2}),
    }


ANSWERS = {True: "yes", False: "no", None: "open"}


def pay_lines(comparison: Comparison, profile: Profile) -> list[str]:
    """Return the answer, the gain over each rival, and the prediction's error."""
    coverage = comparison.coverage
    verdict = advice.judge_gain(profile, comparison.systems, coverage)
    lines = [f"does it pay: {ANSWERS[verdict.pays]}. {verdict.sentence}."]
    for label, rival in _rivals(comparison):
        lines.append(f"  over {label}, {rival.name}: {rival.text}")
    if coverage is not None and not coverage.is_sufficient:
        lines.append(f"  {' '.join([coverage.sentences, *_fix_lines(comparison)])}")
    if note := advice.note_other_trainer(comparison.systems, comparison.baseline):
        lines.append(f"  {note}")
    error = profile.device_error
    stated = "unknown" if error is None else f"{percent(error, 0)}"
    lines.append(f"  predicted, not measured; expected error against devices: {stated}")
    return [part for line in lines for part in wrap_text(line, 98, subsequent_indent="    ")]


def pay_fields(comparison: Comparison, profile: Profile) -> dict[str, Any]:
    """Return the same as JSON values; speed-ups are ratios of whole iterations."""
    return {
        "pays": comparison.pays,
        "coverage": None if comparison.coverage is None else asdict(comparison.coverage),
        "expected_error": profile.device_error,
        "over": [{"rival": label, **_rival_fields(rival)} for label, rival in _rivals(comparison)],
    }


def _rivals(comparison: Comparison) -> list[tuple[str, Rival]]:
    """Pair labels with rivals: the best static run, the nearest published, and today's."""
    systems = comparison.systems
    named = [
        ("the best static run", advice.best_static(systems)),
        ("the nearest published system", advice.best_published(systems)),
    ]
    if comparison.today is not None:
        named.append(comparison.today)
    return [
        (label, measure_speedup(system, comparison.ours))
        for label, system in named
        if system is not None
    ]
