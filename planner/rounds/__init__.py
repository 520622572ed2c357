"""Rounds of groups in lockstep: of a proposal, under ZeRO-3, and for hosts that form groups.

Read ``round_bounds`` (what every plan costs at least), ``one_degree`` (all groups alike), with
``filler`` (rounds by the compiled fill) and ``search`` (their targets); ``plan_rounds`` (the rounds
of a layout), with ``busy_ranks`` (no rank idle), ``best_layout`` (of several), ``assemble`` (to a
plan) and ``proof`` (a closer bound); then ``rank_groups`` (for hosts) and ``options``.
"""

__all__ = [
    "assemble",
    "best_layout",
    "busy_ranks",
    "filler",
    "one_degree",
    "options",
    "plan_rounds",
    "proof",
    "rank_groups",
    "round_bounds",
    "search",
]
