"""The execution plan of a step: its data, its text, its invariants, and each rank's part.

Importing the package imports nothing. Read ``scheme`` and ``plan`` first, then ``groups``,
``schedule`` and ``one_f_one_b`` (what follows from a plan), ``format`` (plans as JSON) and
``views`` (what one rank does). ``lint`` (its invariants) and ``explain`` (a description) are
modules with a function of the same name, ``lint.lint`` and ``explain.explain``; ``ranges``,
``lazy_exports`` and ``version`` serve all.
"""
