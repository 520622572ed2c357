"""Training steps by plans: a model, the preparation of a step, and the step itself.

Read ``run_step`` first, a whole step, and ``stopwatch``, its time; then ``prepare`` (work
ahead of it), ``loss`` (sums over tokens, and what divides them), ``token_values`` (a value for each
token, without training) and ``model`` (a small decoder). Public are the modules named here; the
names that a trainer needs are in ``seqplan.runtime``.
"""
