"""Attention of packed documents over the ranks of a pipeline: Ulysses within, ring around it.

Read ``context`` first (of a micro-batch), then ``unified``, which puts the others
together; ``ulysses`` (all-to-all of heads and tokens), ``masks`` (windows and chunks),
``ring_layout`` and ``cut_layout`` (what each rank of a ring computes when: whole documents, and
those that a mask cuts), ``fetch_layout`` (the rows of its messages), ``ring`` (the computation),
``ring_transfers`` (keys and values under way), ``flat_heads`` (how they travel), ``kernels``
(attention on one device) and ``peers`` (how tensors get from rank to rank).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.sequence_parallel.context import attention_context as attention_context
    from seqplan.runtime.sequence_parallel.context import local_context as local_context

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__, __all__ = lazy_names(__name__, __file__)
