"""Rounds of groups in lockstep: of a proposal, under ZeRO-3, and for trainers that form groups.

Read ``round_bounds`` (what every plan costs at least), ``one_degree`` (all groups alike), with
``filler`` (rounds by the compiled fill), ``filled_rounds`` (what it gives) and ``search`` (their
targets); ``plan_rounds`` (the rounds of a layout), with ``busy_ranks`` (no rank idle),
``best_layout`` (of several) and ``assemble`` (to a plan); ``proof`` (a closer bound), by
``round_program`` and ``round_prices``; then ``rank_groups`` (for trainers) and ``options``.
"""
