"""Middleware of the REST API, in the order in which a request passes it.

``shutdown`` (503 while the service ends), ``dashboard`` (the page, which needs no token),
``request_metrics`` (counts and times), ``tokens`` (401, 403) with ``origins`` (403 for foreign
pages, if there are no tokens), ``direct_acks`` (acknowledgements, answered here), ``body_limit``
(413, and 422 for a NUL), ``head_requests``, ``direct_plans`` (plans and rank views, answered here).
"""
