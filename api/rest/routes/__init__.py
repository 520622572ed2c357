"""The routes, one file a resource; each has a ``routes`` with its handlers.

``profiles``, ``lengths``, ``proposals`` (what jobs need), ``jobs`` with ``new_job`` and
``sampler_state``, ``plans`` and ``acknowledgements`` (of ranks, in each step), ``plan_queries``
(without a job), ``progress`` (for people), ``probes``. A handler's name is its operation id in
the OpenAPI document and its method of ``seqplan.Client``; its docstring describes it there.
"""
