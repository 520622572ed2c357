"""What can go wrong on a rank, as exceptions of one line each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from seqplan.plans.format.decode import PlanError

__all__ = [
    "CheckpointError",
    "DataError",
    "EndOfPlans",
    "PlanError",
    "PlanTimeout",
    "RankLost",
    "UnsupportedModel",
]


class PlanTimeout(PlanError):
    """No plan came in time; a retry may help."""


class EndOfPlans(Exception):
    """There is no plan after the last step."""


class DataError(ValueError):
    """The data set does not match the plan."""


class CheckpointError(Exception):
    """A checkpoint cannot be written, or every one that there is is damaged."""


class UnsupportedModel(ValueError):
    """The model may not compute the same result under a plan."""


class KeptResultChanged(RuntimeError):
    """A model changed a tensor in place that a recomputation mode keeps."""


class RankLost(Exception):
    """Another rank has died or does not answer: this one cannot go on.

    ``doing``: this rank's activity; ``peer``: the global rank that it waited for, if it waited
    for one; ``step``: the step, if one had begun. The rank that ended first need not be
    ``peer``, which may have ended for the same reason as this one.
    """

    def __init__(
        self, doing: str, reason: str, *, peer: int | None = None, step: int | None = None
    ) -> None:
        self.doing, self.reason, self.peer, self.step = doing, reason, peer, step
        when = "" if step is None else f"step {step}: "
        whom = "" if peer is None else f" with rank {peer}"
        super().__init__(
            f"{when}a rank is lost: {reason} while {doing}{whom}; "
            "see the log of the rank that ended first"
        )

    def in_step(self, step: int) -> RankLost:
        """Return the same loss with the step named."""
        return RankLost(self.doing, self.reason, peer=self.peer, step=step)


@contextmanager
def communicating(doing: str, peer: int | None = None) -> Iterator[None]:
    """Turn what a torch backend raises, in a block that only communicates, into ``RankLost``.

    Out of memory and errors of the call itself pass through unchanged.
    """
    try:
        yield
    except RuntimeError as error:
        ours = type(error).__name__ == "OutOfMemoryError" or not (
            type(error).__name__.startswith("Dist") or _BACKEND.search(str(error))
        )
        if ours:
            raise
        raise RankLost(doing, _reason(str(error)), peer=peer) from None


_BACKEND = re.compile("gloo|nccl|connection|timed out|timeout|socket|broken pipe", re.IGNORECASE)
"""Words in errors of torch's backends, which do not always have a type."""


def _reason(text: str) -> str:
    """Summarize a backend's error message."""
    lowered = text.lower()
    if "timed out" in lowered or "timeout" in lowered:
        return "no answer within the group's time-out"
    if "connection" in lowered or "socket" in lowered or "broken pipe" in lowered:
        return "the connection closed"
    first = text.strip().splitlines()[0] if text.strip() else "the backend failed"
    return re.sub(r"^\[[^\]]*\]\s*", "", first)[:200]
