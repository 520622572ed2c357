"""Exact answers for steps of few sequences, by constraint programming (CP-SAT).

Read ``close_gap`` (the flow: a placement with a large gap becomes faster, or its bound closer),
``instance`` (the problem in whole numbers), ``model`` (the CP-SAT model) with
``pipeline_model`` (of one pipeline), ``placement`` (from its solution to micro-batches) and
``repack`` (with stages, micro-batches by their simulated time). All but ``close_gap`` serve this
package alone.
"""
