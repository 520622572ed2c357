"""The REST API of the planning service.

``app`` assembles it from ``routes`` (one file a resource), ``middleware`` (before the routes),
``state`` (what requests share) and ``payloads`` (requests and answers); ``server`` listens,
``openapi`` describes it.
"""
