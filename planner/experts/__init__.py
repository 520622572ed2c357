"""Steps whose experts are split over ranks: components of blocks, which are planned by themselves.

Read ``component_planner`` (the micro-steps of one component), ``components`` (components of a size,
and their sequences), ``leveling`` (sequences that move between them), ``modes`` (the recomputation
modes of a micro-step) and ``coupled_pipelines`` (pipelines that share blocks).
"""
