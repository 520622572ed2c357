"""Attention of packed documents over the ranks of a pipeline: Ulysses within, ring around it.

Read ``context`` first (what is known of a micro-batch), then ``unified``, which puts the others
together; ``ulysses`` (heads are exchanged for
tokens), ``ring_layout`` (what each rank of a ring computes when), ``ring`` (doing it), ``kernels``
(attention on one device) and ``peers`` (how tensors get from rank to rank). Public are the modules
named here; the names that a trainer needs are in ``seqplan.runtime``.
"""

__all__ = [
    "context",
    "kernels",
    "peers",
    "ring",
    "ring_layout",
    "ulysses",
    "unified",
]
