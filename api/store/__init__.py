"""The durable store of the service: uploads, plans, acknowledgements and measurements.

Read ``schema`` (the tables), ``rows`` (their records), ``store`` (opening one, its transactions,
notices to other services that share it), then the file of the table in question in ``tables``.
``migrations`` bring the tables of older stores to this version; ``errors`` distinguishes transient
ones; ``ownership`` is one service's at a time, and binds the folder of arrays to its database.
``read_only`` and ``backup`` read a store that a service may be using.
"""
