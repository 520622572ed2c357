"""One step: from a batch and a proposal to a plan.

Read ``step_planner`` (the flow, by kind of execution), ``selection`` (which candidate runs the
batch, and how) and ``in_process`` (planning inside a training program).
"""
