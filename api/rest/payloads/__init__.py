"""How requests and answers look, whatever they are about.

Read ``fields`` and ``bodies`` (sent by clients), ``answers`` (returned to them), ``parameters`` (of
paths and queries), ``large_bodies`` (many numbers), ``problems`` (every error), ``pages`` (lists),
``texts`` (bodies that are documents), ``idempotency`` (POST once), ``plan_response`` (as bytes).
"""
