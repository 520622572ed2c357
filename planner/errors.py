"""What planning raises when no candidate can run a batch."""

from __future__ import annotations


class Infeasible(RuntimeError):
    """A batch that no candidate can run; the message names the sequence and a fix."""
