"""The durable store of the service: what was uploaded, planned, acknowledged and measured.

Read ``schema`` (the tables), ``rows`` (their records), ``store`` (opening one, its transactions),
then the file of the table in question: each table has one of its name. ``migrations`` bring the
tables of older stores to this version; ``notices`` tell the other services of a shared store;
``outages`` are told from what is wrong for good, ``ownership`` is one service's at a time,
``leftovers`` of a killed one are removed.
"""

__all__ = [
    "acks",
    "answers",
    "batches",
    "errors",
    "jobs",
    "leftovers",
    "lengths",
    "measurements",
    "names",
    "notices",
    "outages",
    "ownership",
    "plans",
    "profiles",
    "proposals",
    "rows",
    "schema",
    "store",
    "tokens",
]
