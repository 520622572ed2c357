"""Rounds of groups in lockstep: under ZeRO-3, and for hosts that form groups for each micro-batch.

Read ``one_degree`` (all groups alike), with ``filler`` (rounds by the compiled fill) and ``search``
(their targets); ``plan_rounds`` (ZeRO-3), with ``fill`` (a round of several degrees), ``assemble``
(to a plan) and ``proof`` (a closer bound); then ``rank_groups`` (no rank idle, for hosts).
"""

__all__ = [
    "assemble",
    "fill",
    "filler",
    "one_degree",
    "plan_rounds",
    "proof",
    "rank_groups",
    "search",
]
