"""The routes, one file a resource; each has a ``routes`` with its handlers.

``profiles``, ``lengths``, ``proposals`` (what jobs need), ``jobs`` with ``job_bodies``,
``data_look``, ``new_job`` and ``sampler_state``, ``plans`` and ``acknowledgements`` (what ranks ask
in each step), ``progress``, ``calibration`` and ``timeline`` (what people look at), ``probes``. A
handler's name and docstring are part of the OpenAPI document.
"""
