"""How requests and answers look, whatever they are about.

Read ``fields`` (numbers and names in requests), ``large_bodies`` (many of them), ``problems``
(every error), ``pages`` (lists), ``texts`` (bodies that are documents), ``idempotency`` (POST
once), ``plan_response`` (a plan as bytes), ``answers`` (their description).
"""
