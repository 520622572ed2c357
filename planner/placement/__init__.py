"""A strategy is given: which pipeline and micro-batch each sequence of a batch goes to.

Read ``fleet`` (a strategy as plain numbers, and its costs of lengths), ``greedy`` (the fill of one
class, in Python and in C) and ``fill`` (place all sequences by a target, the inner loop of every
search), ``dispatch`` (search the least target, and move sequences off the slowest pipeline), then
``pack`` and ``even_chunks``; ``assembly`` makes plans.
"""
