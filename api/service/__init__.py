"""The engine behind the REST interface and the sidecar: it plans the jobs of a store.

Read ``service`` (its interface), ``job_planner`` (a job's thread and its claim), ``look_ahead``
(batches to plan, and planning ahead of the slowest rank), then ``proposal_maker``, ``closed_loop``
(refits) and ``upkeep`` (deletion, expiry, abandoned jobs).
"""
