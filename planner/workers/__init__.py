"""Steps planned ahead, in processes of this machine or actors of a Ray cluster.

Read ``produce`` (plans in order), ``executor`` (where they are made), ``pool`` (workers, their
deaths and what is planned again), ``planned_step`` (what travels), then the two kinds of workers:
``processes``, and ``ray_workers`` with ``ray_driver``. The pool and they serve this room alone.
"""
