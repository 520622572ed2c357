"""Parts of commands with several files; the commands are in the folder above.

``compare_output`` prints a comparison. Of ``plan``: ``first_proposal`` proposes for a model without
a profile, ``planned_steps`` plans and sums up, and ``pay_output`` prints whether plans pay off.
"""
