"""Parameters and optimizer states that stay where they are while the parallel strategy changes.

Read ``unit_states`` first (what is owned, pull and push), then ``unit`` (one unit of it) with
``sync`` (how it travels) and ``gradient_reduction`` (when gradients do); ``sharded_states`` (of a
module that computes with whole parameters) and ``staged_states`` (of pipelines with tensor
parallelism and stages); ``replicas`` (what ranks must hold alike), ``held_bytes`` (of memory),
``optimizers`` (which of them fit), ``checkpoint`` with ``stored_slices`` (what it holds). Public
are the modules named here; the names that a trainer needs are in ``seqplan.runtime``.
"""
