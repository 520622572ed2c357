"""How requests and answers look, whatever they are about.

Read ``fields`` and ``bodies`` (sent by clients), ``answers`` (returned to them), which clients
import without the web framework; ``parameters`` (of paths and queries), ``json_bodies`` (read
strictly), ``problems`` (every error), ``pages`` (lists), ``idempotency`` (POST once),
``plan_response`` (as bytes).
"""
