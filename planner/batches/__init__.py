"""The sequences of each step: drawn from a data set's lengths, or given by the caller.

Read ``batch`` first; ``sampler`` and ``batches_file`` are the two ways to come by one; ``window``
composes the steps that a sampler draws.
"""
