"""What planning raises when no candidate can run a batch."""

from __future__ import annotations


class Infeasible(RuntimeError):
    """A batch that no candidate can run; the message says which sequence and what would mend it."""
