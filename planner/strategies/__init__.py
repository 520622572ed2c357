"""Where strategies come from.

Read ``homogeneous`` (one scheme throughout), ``constructive`` (of one layout, from prices),
``search`` (changes of one that shorten a step), ``rounding`` (from fractional pipeline counts),
``local_search`` (swaps of pipelines, in a proposal) and ``regrouping`` (groups that change within
the step).
"""
