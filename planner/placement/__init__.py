"""A strategy is given: which pipeline and micro-batch each sequence of a batch goes to.

Read ``fleet`` (a strategy as plain numbers), ``sequence_pool``, ``class_fill`` and ``fill`` (place
all sequences by a target, the inner loop of every search; ``kernel``: the same compiled),
``dispatch`` (search the least target), then what comes after it: ``rebalance``, ``pack``,
``even_chunks``, ``micro_batch_order``; ``assembly`` makes plans.
"""
