"""Micro-steps of groups: of a proposal, under ZeRO-3, and for trainers that form groups.

Read ``bounds`` and ``filling``; ``one_mode`` (groups of several sizes), ``plan_micro_steps`` (of
several recomputation modes), ``best_layout`` (of several layouts) and ``assemble`` (to a plan);
``proof`` (a closer bound), by ``cells``; ``replan_pairs`` (shortens plans of many micro-steps).
"""
