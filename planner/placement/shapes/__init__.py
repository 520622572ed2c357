"""Placement into micro-batches of few given sizes.

Read ``assign_shapes`` (pipelines get sizes, and micro-batches their sequences), ``exchange_sized``
(exchanges that make all fit), ``change_sizes`` (of a pipeline that exchanges leave uneven) and
``fill_shapes``, which searches the least limit.
"""
