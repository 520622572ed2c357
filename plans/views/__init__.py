"""What a plan means for one rank, or for a pair of them.

Read ``rank_view`` (a rank's part of a plan) and ``sharding`` (which tokens it holds), then
``collectives`` (in which order it communicates), ``resharding`` (which parameters and gradients
move) and ``decode_view`` (a view out of JSON).
"""

__all__ = ["collectives", "decode_view", "rank_view", "resharding", "sharding"]
