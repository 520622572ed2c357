"""The analytic model held against what others published.

``table_check`` is a table and how far off it is; ``tables`` predicts all of them.
"""
