"""A rank's steps: its views of the plans, fetched ahead, and agreed on by all ranks.

Read ``source`` first, the contract of all sources and the one of plan files; then ``http_source``
(a planning service, over ``http_connection``, with ``acknowledgements`` kept on disk) and
``fan_out`` (one rank requests for all),
``agreement`` and, which puts them together, ``consumer``; ``in_process`` for plans that are made on
the ranks themselves. Public are the modules named here; the names that a trainer needs are in
``seqplan.runtime``.
"""
