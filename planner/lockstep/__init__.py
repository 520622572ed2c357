"""Rounds of groups in lockstep: of a proposal, under ZeRO-3, and for trainers that form groups.

Read ``round_bounds`` (least cost of every plan), ``one_degree`` (groups of one size), with
``filler`` (rounds by the compiled fill), ``filled_rounds`` (its result) and ``search`` (their
targets); ``plan_rounds`` (the rounds of a layout), with ``busy_ranks`` (no rank idle),
``best_layout`` (of several) and ``assemble`` (to a plan); ``proof`` (a closer bound), by
``round_program`` and ``round_prices``; then ``rank_groups`` (for trainers) and ``options``.
"""
