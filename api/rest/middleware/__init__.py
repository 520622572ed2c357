"""Middleware of the REST API, in the order in which a request passes it.

``shutdown`` (503 while the service ends), ``dashboard`` (the page, which needs no token),
``request_metrics`` (counts and times), ``tokens`` (401 and 403, for foreign pages if there are no
tokens; 429), ``direct_acks`` (acknowledgements, answered here), ``body_limit`` (413, 415, and 422
for a NUL), ``direct_plans`` (HEAD as GET; plans and rank views, answered here).
``http_middleware`` has the base of all.
"""
