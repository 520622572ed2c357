"""The durable store of the service: uploads, plans, acknowledgements and measurements.

Read ``schema`` (the tables), ``rows`` (their records), ``store`` (opening one, its transactions),
then the file of the table in question in ``tables``. ``migrations`` bring the tables of older
stores to this version; ``notices`` inform the other services of a shared store; ``errors``
distinguishes transient ones; ``ownership`` is one service's at a time; ``folder_mark`` binds the
folder of arrays to its database. ``read_only`` and ``backup`` read a store that a service may be
using.
"""
