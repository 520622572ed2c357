"""The processes of a training check: ranks that run a plan file, and a reference beside them.

Read ``__main__`` first, which a process runs (``python -m seqplan.runtime.train_check``), then
``reference``, the same training in plain torch. Public is the module named here.
"""

__all__ = [
    "reference",
]
