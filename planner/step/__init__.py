"""One step: from a batch and a proposal to a plan.

Read ``step_planner`` (the flow), ``selection`` (which candidate runs the batch, and how),
``assemble`` (from the placement to the plan), ``reforming`` (groups that change within the step)
and ``reforming_plan`` (when such a plan replaces the static one).
"""

__all__ = ["assemble", "reforming", "reforming_plan", "selection", "step_planner"]
