"""Training steps as plans have them: a model, its sharded states, steps and checkpoints.

Read ``run_step`` first, a whole step, and ``stopwatch``, its time; then ``prepare`` (what is done
ahead of it), ``sharded_states`` (parameters and optimizer states) with ``unit`` (those of a layer)
and ``replicas`` (what ranks must hold alike), ``model`` (a small decoder) and ``checkpoint``.
Public are the modules named here; the names that a trainer needs are in ``seqplan.runtime``.
"""

__all__ = [
    "checkpoint",
    "model",
    "prepare",
    "replicas",
    "run_step",
    "sharded_states",
    "stopwatch",
    "unit",
]
