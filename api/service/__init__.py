"""The engine behind the REST interface and the sidecar: it plans the jobs of a store.

Read ``service`` (its interface), ``job_planner`` (a job's thread and its claim), ``look_ahead``
(planning ahead of the slowest rank), ``job_batches`` (batches to plan), then ``proposal_maker``
and ``upkeep`` (deletion, expiry, abandoned jobs).
"""
