"""One step: from a batch and a proposal to a plan.

Read ``step_planner`` (the flow), ``selection`` (which candidate runs the batch, and how) and
``assemble`` (from the placement to the plan).
"""

__all__ = ["assemble", "selection", "step_planner"]
