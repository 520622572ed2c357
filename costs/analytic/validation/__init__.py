"""The analytic model compared with published measurements.

``table_check`` is a table and how far off it is; ``tables`` predicts all of them.
"""
