"""What a request passes before the framework sees it, the first to be asked first.

``ending`` (503 where the service ends), ``dashboard`` (the page, which needs no token), ``figures``
(counts and times), ``tokens`` (401, 403) with ``origins`` (403 for foreign pages, where there are
no tokens), ``direct_acks`` (acknowledgements, answered here), ``body_limit`` (413), ``nul`` (422),
``head``, ``direct_plans`` (plans and rank views, answered here).
"""

__all__ = [
    "body_limit",
    "dashboard",
    "direct_acks",
    "direct_plans",
    "ending",
    "figures",
    "head",
    "nul",
    "origins",
    "tokens",
]
