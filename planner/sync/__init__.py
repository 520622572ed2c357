"""Time of an iteration next to forward and backward: all-gather, reduce-scatter, optimizer.

Read ``times`` (the sync of a strategy, and strategies with equal times),
then ``derive`` (from the layout's bytes and the cluster's links) and ``choice`` (derived, given or
none).
"""
