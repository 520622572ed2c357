"""Reads and writes of the store's tables, a file for each table.

Read ``jobs`` first, which the others belong to, then ``plans``, ``acks`` and ``measurements``:
what a step leaves behind. ``expiry`` deletes rows in batches; ``leftovers`` are files of no data
set in ``lengths``, whose arrays are next to the database. Public to the service are all of them.
"""
