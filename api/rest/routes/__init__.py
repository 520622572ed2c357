"""The routes, one file a resource; each has a ``routes`` with its handlers.

``profiles``, ``lengths``, ``proposals`` (what jobs need), ``jobs`` with ``job_bodies``,
``data_look``, ``new_job`` and ``sampler_state``, ``plans`` and ``acknowledgements`` (what ranks ask
in each step), ``progress``, ``drift`` and ``timeline`` (what people look at), ``probes``. A
handler's name and docstring are part of the OpenAPI document.
"""

__all__ = [
    "acknowledgements",
    "data_look",
    "drift",
    "job_bodies",
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
