"""The REST interface, /v1: what trainers and people ask of the service over HTTP.

Read ``app`` (how it is put together), ``routes`` (one file a resource), ``middleware`` (what comes
before the routes), ``live`` (what they share), ``wire`` (how requests and answers look); ``server``
listens, ``openapi`` describes the interface. Public are ``app`` and ``server``.
"""

__all__ = ["app", "connections", "live", "middleware", "openapi", "routes", "server", "wire"]
