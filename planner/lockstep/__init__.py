"""Micro-steps of groups: of a proposal, under ZeRO-3, and for trainers that form groups.

Read ``micro_step_bounds`` (least cost of every plan), ``filler`` (micro-steps by the compiled
fill), ``filled_micro_steps`` (its result) and ``search`` (numbers of micro-steps and their targets,
for all that follow); ``one_degree`` (groups of one size), ``one_mode`` (of several), with
``busy_ranks`` (no rank idle), ``plan_micro_steps`` (of several recomputation modes),
``best_layout`` (of several layouts) and ``assemble`` (to a plan); ``proof`` (a closer bound), by
``cells``, ``micro_step_program`` and ``micro_step_prices``; ``replan_pairs`` (shortens plans of
many micro-steps); then ``rank_groups`` (for trainers).
"""
