"""Balancing for hosts whose data-parallel ranks are all alike: one scheme, no groups to choose.

Read ``balance_ranks`` (the function and its result), ``cost`` (what a micro-batch takes),
``lockstep`` (ranks wait for each other after each micro-batch), ``free`` (they meet once a step)
and ``constrained`` (sequences that stay together, or equally many to a rank).
"""

__all__ = ["balance_ranks", "constrained", "cost", "free", "lockstep"]
