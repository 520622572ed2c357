"""Whether plans pay off: their gain over what would run instead, and how certain it is."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from seqplan.planner.comparison.advice import best_published, best_static, judge_gain
from seqplan.planner.comparison.nearest import measure_speedup

if TYPE_CHECKING:
    from seqplan.costs.profile import Profile
    from seqplan.planner.comparison.nearest import Rival
    from seqplan.planner.comparison.results import Comparison

ANSWERS = {True: "yes", False: "no", None: "open"}


def pay_lines(comparison: Comparison, profile: Profile) -> list[str]:
    """Return the answer, the gain over each rival, and the prediction's error."""
    verdict = judge_gain(profile, comparison.systems)
    lines = [f"does it pay: {ANSWERS[verdict.pays]}. {verdict.sentence}."]
    for label, rival in _rivals(comparison):
        lines.append(f"  over {label}, {rival.name}: {rival.text}")
    error = profile.device_error
    stated = "unknown" if error is None else f"{error:.0%}"
    lines.append(f"  predicted, not measured; expected error against devices: {stated}")
    return [part for line in lines for part in textwrap.wrap(line, 98, subsequent_indent="    ")]


def pay_fields(comparison: Comparison, profile: Profile) -> dict[str, Any]:
    """Return the same as JSON values; speed-ups are ratios of whole iterations."""
    return {
        "pays": judge_gain(profile, comparison.systems).pays,
        "expected_error": profile.device_error,
        "over": [
            {
                "rival": label,
                "key": rival.key,
                "name": rival.name,
                "speedup": round(rival.speedup, 4),
                "interval": None
                if rival.interval is None
                else [round(end, 4) for end in rival.interval],
            }
            for label, rival in _rivals(comparison)
        ],
    }


def _rivals(comparison: Comparison) -> list[tuple[str, Rival]]:
    """Pair labels with rivals: the best static run, the nearest published, and today's."""
    systems = comparison.systems
    named = [
        ("the best static run", best_static(systems)),
        ("the nearest published system", best_published(systems)),
    ]
    if comparison.today is not None:
        named.append(comparison.today)
    return [
        (label, measure_speedup(system, comparison.ours))
        for label, system in named
        if system is not None
    ]
