"""A strategy is given: which pipeline and micro-batch each sequence of a batch goes to.

Read ``fleet`` (a strategy as plain numbers), ``sequence_pool`` and ``fill`` (place all sequences by
a target, the inner loop of every search), ``dispatch`` (search the least target), then what comes
after it: ``balance``, ``pack``, ``even_chunks``, ``micro_batch_order``; ``assembly`` makes plans.
"""

__all__ = [
    "assembly",
    "balance",
    "dispatch",
    "even_chunks",
    "fill",
    "fleet",
    "micro_batch_order",
    "pack",
    "sequence_pool",
]
