"""What is read from the store's tables and written to them, a file for each table.

Read ``jobs`` first, which the others belong to, then ``plans``, ``acks`` and ``measurements``:
what a step leaves behind. ``leftovers`` are what a killed service left of ``lengths``, whose
arrays are files beside the database. Public to the service are all of them.
"""

__all__ = [
    "acks",
    "answers",
    "batches",
    "jobs",
    "leftovers",
    "lengths",
    "measurements",
    "plans",
    "profiles",
    "proposals",
    "tokens",
]
