"""What a plan means for one rank, or for a pair of them.

Read ``rank_view`` (a rank's part of a plan), ``sharding`` (which tokens it holds) and ``placement``
(where all pipelines run), then ``collectives`` (in which order a rank communicates), ``lockstep``
(which micro-batches go together where all ranks meet after each),
``parameter_layout`` (what a rank holds of a parameter), ``unit_layout`` with ``owners`` (which
travel together, and whose they are), ``resharding`` (which parameters and gradients move),
``exchange_count`` (how many of them) and ``decode_view`` (a view out of JSON).
"""

__all__ = [
    "collectives",
    "decode_view",
    "exchange_count",
    "lockstep",
    "owners",
    "parameter_layout",
    "placement",
    "rank_view",
    "resharding",
    "sharding",
    "unit_layout",
]
