"""Parts of commands with several files; the commands are in the folder above.

``compare_output`` prints a comparison, and whether plans pay off. Of ``plan``: ``first_proposal``
proposes for a model without a profile, and ``planned_steps`` plans and sums up. ``measured_steps``
reads the records of ``log``.
"""
