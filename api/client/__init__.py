"""The service from Python: one method a route, sync and async, typed by the service's models.

Read ``call`` (a request and how to read its response), ``operations`` (the routes), ``exchange``
(retries and errors, without input and output), ``client`` (connections). The command line uses it;
``seqplan.Client`` and ``seqplan.AsyncClient`` are public.
"""
