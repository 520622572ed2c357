"""Proven lower bounds on a step's time, for one fleet and over all strategies of a cluster.

Read ``resources`` (of pipelines, and shares of sequences in them), ``relaxation`` (the linear
program that prices sequences), ``step_bounds`` (from prices to a proof), then the two that seek a
bound worth having: ``certificate`` for one fleet, ``all_strategies`` over all of them;
``with_sync`` adds the gradient sync, ``sequence_costs`` costs single sequences.
``resources`` serves this package alone.
"""
