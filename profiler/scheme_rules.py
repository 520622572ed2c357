"""Coefficients of a profile that contradict each other."""

from __future__ import annotations

from statistics import median

from seqplan.plans.scheme import Scheme
from seqplan.profiler.profile import Profile

SPREAD = 2.0
"""How far a scheme's quadratic work may be from the profile's median before it is doubted."""


def doubts(profile: Profile) -> dict[Scheme, str]:
    """Schemes whose quadratic coefficient is far from what the others say of the same model.

    Attention's work does not depend on the scheme, so a·gpus is about equal over the schemes, with
    efficiency and bubbles apart (b is not compared: communication makes it differ). Flagged schemes
    are left out; they have been explained already.
    """
    kept = [entry for entry in profile.schemes if not entry.flag]
    work = {entry.scheme: entry.latency.a * entry.scheme.gpus for entry in kept}
    if len(work) < 3:
        return {}
    middle = median(work.values())
    found = {}
    for scheme, value in work.items():
        if value > SPREAD * middle or value * SPREAD < middle:
            found[scheme] = (
                f"a·gpus is {value / middle:.2g} times the median of the profile's schemes; "
                "attention's work should hardly depend on the scheme. Used as published"
            )
    return found
