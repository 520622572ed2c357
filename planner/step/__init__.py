"""One step: from a batch and a proposal to a plan.

Read ``step_planner`` (the flow), ``selection`` (which candidate runs the batch, and how),
``assemble`` (from the placement to the plan), ``regrouping_plan`` (when a plan whose groups regroup
within the step replaces the static one) and ``in_process`` (planning inside a training program).
"""
