"""The routes, one file a resource; each has a ``routes`` with its handlers.

``profiles``, ``lengths``, ``proposals`` (what jobs need), ``jobs`` with ``new_job`` and
``sampler_state``, ``plans`` and ``acknowledgements`` (what ranks ask in each step), ``progress``,
``drift`` and ``timeline`` (what people look at), ``probes``. A handler's name and docstring are
part of the OpenAPI document.
"""

__all__ = [
    "acknowledgements",
    "drift",
    "jobs",
    "lengths",
    "new_job",
    "plans",
    "probes",
    "profiles",
    "progress",
    "proposals",
    "sampler_state",
    "timeline",
]
