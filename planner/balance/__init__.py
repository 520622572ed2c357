"""Balancing for trainers whose data-parallel ranks run one scheme: no groups to choose.

Read ``balance_ranks`` (the function), ``balanced`` (its result), ``micro_batch`` and ``cost`` (what
a rank runs), ``ways`` (plans in each mode), ``free`` (ranks meet once a step; in lockstep:
``planner/lockstep/one_degree``), ``constrained`` (sequences that stay together, or equally many to
a rank), ``slow_ranks`` (slower ranks), ``loads`` (samples with several phases,
by ``assignment`` and ``slots``) and ``fixed_ranks`` (sequences assigned already).
"""
