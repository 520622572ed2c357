"""Rounds of groups in lockstep: under ZeRO-3, and for hosts that form groups for each micro-batch.

Read ``plan_rounds`` (ZeRO-3), with ``fill`` (a round to its target), ``assemble`` (to a plan) and
``proof`` (a closer bound); then ``rank_groups`` (no rank idle, for hosts), with ``filler`` (rounds
by the compiled fill) and ``search`` (their targets).
"""

__all__ = ["assemble", "fill", "filler", "plan_rounds", "proof", "rank_groups", "search"]
