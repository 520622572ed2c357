"""When passes run and how long a step takes, by discrete-event simulation.

Read ``one_f_one_b`` (one pipeline, and the order of its micro-batches), ``timeline`` (a plan), then
``iteration`` (any system, with sync and optimizer) and ``flops`` (the GPUs' utilization).
"""
