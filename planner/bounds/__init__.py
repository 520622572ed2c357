"""Proven lower bounds on a step's time, for one fleet and over all strategies of a cluster.

Read ``gpu_time`` (bounds that take microseconds), ``resources`` (of pipelines, and shares of
sequences in them), ``relaxation`` (the linear program that prices sequences, and the proof for one
fleet), then ``all_strategies`` (over all fleets); ``with_sync`` adds the gradient sync,
``sequence_costs`` costs single sequences.
"""
