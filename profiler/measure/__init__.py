"""Measuring a model's micro-batches on real devices: the only room that uses the runtime.

Read ``run`` first, a whole design from start to end; then ``design`` (which micro-batches),
``measurer`` (one of them), ``bench`` and ``stage`` (a rank's part of it), ``timing`` with
``yardstick`` and ``device``, ``saved_memory``, ``out_of_memory`` (which errors are that) and
``lost_ranks`` (a rank is out of memory while others wait).
"""
