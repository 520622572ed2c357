"""Where strategies come from.

Read ``homogeneous`` (one scheme throughout), ``constructive`` (of one layout, from prices),
``rounding`` (from fractional pipeline counts), ``local_search`` (swaps of pipelines, judged by
placement), ``uneven_search`` (changes of groups, on ranks of different speeds) and ``regrouping``
(groups that change within the step).
"""
