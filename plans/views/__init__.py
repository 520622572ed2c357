"""What follows from a plan for one rank.

``rank_view`` first; ``sharding`` (its tokens), ``placement`` (all pipelines), ``collectives``
(their order on a rank), ``lockstep`` (micro-batches that run together), ``parameter_layout`` (parts
of a parameter on a rank), ``unit_layout`` with ``optimizer_sharding`` (parameter groups and their
owners), ``resharding`` (parameters and gradients that move), ``sync_count`` (their number) and
``decode_view`` (a view out of JSON).
"""
