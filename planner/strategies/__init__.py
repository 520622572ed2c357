"""Where strategies come from.

Read ``homogeneous`` (one scheme throughout), ``constructive`` (of one layout, from prices),
``rounding`` (from fractional pipeline counts), ``local_search`` (swaps of pipelines, judged by
placement) and ``reforming`` (groups that change within the step).
"""

__all__ = ["constructive", "homogeneous", "local_search", "reforming", "rounding"]
