"""Where strategies come from.

Read ``homogeneous`` (one scheme throughout), ``rounding`` (from fractional pipeline counts) and
``local_search`` (swaps of pipelines, judged by placement).
"""

__all__ = ["homogeneous", "local_search", "rounding"]
