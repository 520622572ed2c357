"""GPUs and their links: data sheets, and how long one operation takes.

Read ``hardware`` (a device, a cluster), ``devices`` (those with a name), ``hardware_file`` (from a
file) and ``profiled_device`` (of a profile); then ``kernels``, ``attention_rates`` and ``links``
(one operation each).
"""
