"""Verifying a device: is what the profiler and the runtime rest on true of it, within ten minutes.

Read ``verification`` first, which runs the checks in order, and ``results``, what they give. Each
check is a module: ``attention_check`` (with ``attention_cases``, ``ring_emulation`` and
``dense_attention``), ``rates_check``, ``profile_check``, ``memory_check``, ``step_check`` and
``ranks_check``; ``settings`` has their sizes.
"""
