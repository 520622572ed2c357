"""From samples to profiles: pooled, fitted with honest errors, refitted to training's own times.

Read ``samples`` first (what was measured) and ``sample_file`` (on disk), then ``pooling``, ``busy``
(samples that say nothing), ``latency_fit`` and ``measured_profile``, which fits them all and writes
the profile; ``refit`` and ``drift`` concern step times that come back from training. Public are the
modules named here.
"""

__all__ = [
    "busy",
    "drift",
    "latency_fit",
    "measured_profile",
    "pooling",
    "refit",
    "sample_file",
    "samples",
]
