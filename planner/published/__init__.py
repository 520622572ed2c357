"""Published methods, as their papers have them: to compare with, and as references for tests.

Each file stands alone and names its source: ``eq4``, ``greedy_dispatch`` and ``ilp_packing`` are
Hydraulis', ``flexsp`` is FlexSP's. ``buckets`` and ``cbc`` serve this room alone.
"""

__all__ = ["eq4", "flexsp", "greedy_dispatch", "ilp_packing"]
