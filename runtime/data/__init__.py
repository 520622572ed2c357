"""Tokens of a plan's samples: from data sets on disk to a rank's share of a micro-batch.

Read ``tokens`` first, the interface of token data and how a share is loaded; then ``targets``
(labels, weights and extras of the data), ``files`` and ``megatron``, the kinds of files that
are read. ``comparison``: whether all ranks read the same tokens. Public are the modules named here;
the names that a trainer needs are in ``seqplan.runtime``.
"""
