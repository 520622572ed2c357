"""How requests and answers look, whatever they are about.

Read ``fields`` (numbers in requests), ``problems`` (every error), ``pages`` (lists), ``texts``
(bodies that are documents), ``idempotency`` (POST once), ``plan_response`` (a plan as bytes).
"""

__all__ = ["fields", "idempotency", "pages", "plan_response", "problems", "texts"]
