"""The few facts of a plan that tables and curves of a whole job need, kept by the plan's digest."""

from __future__ import annotations

import json
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from seqplan.plans.decode import PlanReader
from seqplan.plans.plan import Plan
from seqplan.plans.scheme import Scheme, Strategy
from seqplan.profiler.measured.refit import Measurable, measurable

KEPT = 4096
"""Plans of which the facts are kept, over all jobs."""


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """A plan without its sequences; times in ms.

    ``measurable``: its pipelines that step times speak of, their lengths left out.
    ``pipelines``: all of them that have work.
    """

    predicted_ms: float
    lower_bound_ms: float
    gap: float
    tokens: int
    sequences: int
    strategy: str
    pipelines: int
    measurable: tuple[Measurable, ...]

    @classmethod
    def of(cls, plan: Plan, schemes: dict[Scheme, Scheme]) -> PlanSummary:
        """``schemes``: one object for each scheme, shared by the summaries."""
        strategy = Strategy.of(Counter(pipeline.scheme for pipeline in plan.pipelines))
        return cls(
            plan.predicted_ms,
            plan.lower_bound_ms,
            plan.gap,
            plan.tokens,
            len(plan.ids),
            str(strategy),
            sum(1 for pipeline in plan.pipelines if pipeline.micro_batches),
            tuple(
                Measurable(
                    schemes.setdefault(each.scheme, each.scheme),
                    _compact(each.ranks),
                    (),
                    each.micro_batches,
                    each.predicted_ms,
                )
                for each in measurable(plan)
            ),
        )


class PlanSummaries:
    """Summaries by digest, the least lately used forgotten first. May be used from threads."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._known: OrderedDict[str, PlanSummary] = OrderedDict()
        self._schemes: dict[Scheme, Scheme] = {}
        self._lock = threading.Lock()

    def of(
        self, digests: Mapping[int, str], lines: Callable[[Iterable[int]], Mapping[int, str]]
    ) -> dict[int, PlanSummary]:
        """The summaries of steps, given their plans' digests.

        ``lines`` gives the JSON of the steps that are not known yet. It is taken from the store as
        it was checked when it was put there: neither digest nor invariants are checked again.
        """
        found: dict[int, PlanSummary] = {}
        with self._lock:
            for step, digest in digests.items():
                if digest in self._known:
                    self._known.move_to_end(digest)
                    found[step] = self._known[digest]
        missing = [step for step in digests if step not in found]
        read = lines(missing) if missing else {}
        for step, line in read.items():
            plan = PlanReader(f"step {step}", strict=False).plan(json.loads(line))
            found[step] = PlanSummary.of(plan, self._schemes)
        with self._lock:
            for step in read:
                self._known[digests[step]] = found[step]
            while len(self._known) > self._kept:
                self._known.popitem(last=False)
        return found


def _compact(ranks: Sequence[int]) -> Sequence[int]:
    """Neighbouring ranks, which most pipelines have, as a range: no memory for each of them."""
    spanned = range(ranks[0], ranks[0] + len(ranks))
    return spanned if tuple(spanned) == tuple(ranks) else tuple(ranks)
