"""Verifying a device: whether the assumptions of profiler and runtime hold, in ten minutes.

Read ``verification`` first, which runs the checks in order, and ``results``, their data. Each
check is a module: ``attention_check`` (with ``attention_cases``, ``ring_emulation`` and
``dense_attention``), ``rates_check``, ``profile_check``, ``memory_check``, ``step_check`` and
``ranks_check``; ``settings`` has their sizes.
"""
