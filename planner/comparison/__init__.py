"""Training systems on the same batches, simulated the same way: what heterogeneous plans are worth.

Read ``compare`` (the flow), ``results`` (its data), ``advice`` (the conclusion in words) and
``sweep`` (one comparison for each value of a setting). The systems are in ``systems``.
"""
