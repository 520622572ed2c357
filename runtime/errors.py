"""What can go wrong on a rank's input side, as exceptions of one line each."""

from __future__ import annotations

from seqplan.plans.format.decode import PlanError

__all__ = ["DataError", "EndOfPlans", "PlanError", "PlanTimeout"]


class PlanTimeout(PlanError):
    """No plan came in time; asking again may help."""


class EndOfPlans(Exception):
    """There is no plan after the last step."""


class DataError(ValueError):
    """The data set does not hold what the plan says it holds."""
