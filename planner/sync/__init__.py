"""Time of an iteration next to forward and backward: all-gather, reduce-scatter, optimizer.

Read ``times`` (what the sync of a strategy takes, and which strategies take equally long),
then ``derive`` (from the layout's bytes and the cluster's links) and ``choice`` (derived, given or
none).
"""
