"""Balancing for trainers whose data-parallel ranks are equal: one scheme, no groups to choose.

Read ``balance_ranks`` (the function and its result), ``cost`` (of a micro-batch), ``free``
(ranks meet once a step; in lockstep: ``planner/lockstep/one_degree``), ``constrained`` (sequences
that stay together, or equally many to a rank) and ``fixed_ranks`` (sequences assigned already).
"""
