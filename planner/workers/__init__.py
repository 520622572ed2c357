"""Steps planned ahead, in processes of this machine or actors of a Ray cluster.

Read ``produce`` (plans in order), ``executor`` (their processes), ``pool`` (workers, their
deaths and retries), ``planned_step`` (the message), then the two kinds of workers:
``processes``, and ``ray_workers`` with ``ray_driver``. The pool and they serve this package alone.
"""
