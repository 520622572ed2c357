"""The durable store of the service: what was uploaded, planned, acknowledged and measured.

Read ``schema`` (the tables), ``rows`` (their records), ``store`` (opening one, its transactions),
then the file of the table in question in ``tables``. ``migrations`` bring the tables of older
stores to this version; ``notices`` tell the other services of a shared store; ``outages`` are told
from what is wrong for good, ``ownership`` is one service's at a time, ``folder_mark`` binds the
folder of arrays to its database.
"""
