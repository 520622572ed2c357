"""Parameters and optimizer states that stay in place while the parallel strategy changes.

Read ``unit_states`` first (owners, all-gather, reduce-scatter), then ``unit`` (one unit) with
``sync`` (how it travels), ``rails`` (between nodes) and ``gradient_reduction`` (when gradients
do); ``sharded_states`` (of a module that computes with whole parameters) and ``staged_states`` (of
pipelines with tensor parallelism and stages); ``replicas`` (values equal on all ranks),
``held_bytes`` (of memory), ``optimizers`` (which of them fit). The names that a trainer needs are
in ``seqplan.runtime``.
"""
