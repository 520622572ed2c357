"""Lower bounds of micro-steps.

Read ``micro_step_bounds`` (least cost of every plan), then ``micro_step_program`` and
``micro_step_prices`` (a closer bound, of which ``proof`` makes use).
"""
