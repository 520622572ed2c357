"""The processes of a training check: ranks that run a plan file, and a reference to compare with.

Read ``__main__`` first, which forks them (``python -m seqplan.runtime.check``), then
``processes``, what each of them does, and ``reference``, the same training in plain torch. Public
are the modules named here.
"""
