"""Plans executed by local processes beside one process that knows no plan.

Read ``check`` (what is run, compared and allowed), then ``processes`` (ranks that are started,
listened to and ended). Public are both.
"""

__all__ = [
    "check",
    "processes",
]
