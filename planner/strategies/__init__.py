"""Where strategies come from.

Read ``homogeneous`` (one scheme throughout), ``constructive`` (of one layout, from prices),
``rounding`` (from fractional pipeline counts), ``local_search`` (swaps of pipelines, judged by
placement) and ``regrouping`` (groups that change within the step).
"""
