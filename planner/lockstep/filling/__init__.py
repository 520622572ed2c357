"""Micro-steps of one layout and mode: filled by targets, and their search.

Read ``filler`` (micro-steps by the compiled fill), ``filled_micro_steps`` (its result) and
``search`` (numbers of micro-steps and their targets, for all that follow); ``longest_first``,
``one_degree`` (groups of one size), with ``rank_speeds``, and ``two_micro_steps``;
``one_micro_step`` (given groups); ``busy_ranks`` (no rank idle); then ``rank_groups`` (for
trainers), with ``few_groups``.
"""
