"""The engine behind the REST interface and the sidecar: it plans the jobs of a store.

Read ``service`` (what it is told), ``job_planner`` (a job's thread and its claim), ``look_ahead``
(planning ahead of the slowest rank), ``job_batches`` (what is due), then ``proposal_maker``
and ``upkeep`` (deletion, expiry, abandoned jobs). Public are
``service``; ``plan_bytes``, ``plan_summary`` and ``drift_watch`` for the answers.
"""

__all__ = [
    "drift_watch",
    "job_batches",
    "job_drift",
    "job_news",
    "job_planner",
    "look_ahead",
    "plan_bytes",
    "plan_summary",
    "proposal_maker",
    "proposal_request",
    "service",
    "upkeep",
]
