"""Published plans: the bytes that go out, and the facts that pages of a whole job need.

Of a plan few facts are enough for tables and curves; they are kept by the plan's digest.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sqlalchemy import Connection

from seqplan.api.loggers.step_metrics import compute_error
from seqplan.api.store.errors import RowDamaged
from seqplan.api.store.lru import Lru
from seqplan.api.store.tables.plans import PlannedStep, StoredPlan, plan_lines
from seqplan.costs.fit.measurements import Measurable, measurable
from seqplan.plans.format.codec import from_json
from seqplan.plans.format.decode import PlanError, PlanReader
from seqplan.plans.plan import Plan
from seqplan.plans.schedule import list_idle_ranks, predict_rank_times
from seqplan.plans.scheme import Scheme, Strategy
from seqplan.plans.views.rank_view import views_json
from seqplan.runtime.sources.http_source import FAN_OUT_RANKS

KEPT = 2048
"""Plans of which the facts are kept, over all jobs."""


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """A plan without its sequences; times in ms.

    ``measurable``: its pipelines that step times speak of, their lengths left out.
    ``pipelines``: all of them that have work; ``slowest_rank_ms``: of the ``ranks`` with work;
    ``idle``: the others.
    """

    predicted_ms: float
    lower_bound_ms: float
    gap: float
    tokens: int
    sequences: int
    strategy: str
    pipelines: int
    slowest_rank_ms: float
    ranks: int
    idle: tuple[int, ...]
    measurable: tuple[Measurable, ...]

    @classmethod
    def from_line(cls, line: str, schemes: dict[tuple[int, ...], Scheme]) -> PlanSummary:
        """Summarise a plan's JSON, its ids, lengths, groups and selection left out.

        Checking and keeping those is most of what reading a plan takes. ``schemes``: those known by
        their degrees, one object for all summaries. ``RowDamaged`` if it differs from the plan.
        """
        fields = json.loads(line)
        sequences = fields["sequences"]
        count = len(sequences["ids"])
        nothing: dict[str, Any] = {"ids": [], "lengths": []}
        if "loads" in sequences:
            without: dict[str, Any] = {"tokens": [], "work_ms": []}
            nothing["loads"] = [{**load, **without} for load in sequences["loads"]]
        fields |= {"sequences": nothing, "groups": [], "selection": []}
        for pipeline in fields["pipelines"]:
            for batch in pipeline["micro_batches"]:
                batch["sequences"] = []
        reader = PlanReader("the store's plan", strict=False)
        reader.schemes = schemes
        try:
            return cls.from_plan(reader.plan(fields), count)
        except PlanError as error:
            raise RowDamaged(str(error)) from error

    @classmethod
    def from_plan(cls, plan: Plan, sequences: int) -> PlanSummary:
        """Summarise a plan of so many sequences, whether it still holds them or not."""
        strategy = Strategy.from_counts(Counter(pipeline.scheme for pipeline in plan.pipelines))
        rank_ms = predict_rank_times(plan)
        return cls(
            predicted_ms=plan.predicted_ms,
            lower_bound_ms=plan.lower_bound_ms,
            gap=plan.gap,
            tokens=plan.tokens,
            sequences=sequences,
            strategy=str(strategy),
            pipelines=sum(1 for pipeline in plan.pipelines if pipeline.micro_batches),
            slowest_rank_ms=max(rank_ms.values(), default=0.0),
            ranks=len(rank_ms),
            idle=list_idle_ranks(plan),
            measurable=tuple(
                replace(pipeline, ranks=_compact(pipeline.ranks), lengths=(), by_mode={})
                for pipeline in measurable(plan)
            ),
        )


class PlanSummaries:
    """Summaries by digest, the least lately used forgotten first. May be used from threads."""

    def __init__(self, most: int = KEPT) -> None:
        self._known: Lru[str, PlanSummary] = Lru(most)
        self._schemes: dict[tuple[int, ...], Scheme] = {}

    def keep(self, digest: str, summary: PlanSummary) -> None:
        """Store the summary of a plan, so that it need not be read again."""
        self._known.put(digest, summary)

    def of(
        self, connection: Connection, job: str, digests: Mapping[int, str]
    ) -> dict[int, PlanSummary]:
        """Return the summaries of a job's steps, given their plans' digests.

        Plans that are not known yet are read.
        """
        summaries: dict[int, PlanSummary] = {}
        for step, digest in digests.items():
            if (summary := self._known.get(digest)) is not None:
                summaries[step] = summary
        missing = [step for step in digests if step not in summaries]
        for step, line in plan_lines(connection, job, missing).items():
            summaries[step] = PlanSummary.from_line(line, self._schemes)
            self._known.put(digests[step], summaries[step])
        return summaries


def _compact(ranks: Sequence[int]) -> Sequence[int]:
    """Write neighboring ranks, which most pipelines have, as a range: it takes less memory."""
    spanned = range(ranks[0], ranks[0] + len(ranks))
    return spanned if tuple(spanned) == tuple(ranks) else tuple(ranks)


def step_fields(
    step: PlannedStep, summary: PlanSummary, acknowledged: Sequence[int]
) -> dict[str, Any]:
    """Return a step as ``GET /v1/jobs/JOB/steps`` lists it.

    ``step``: without times of idle ranks; ``acknowledged``: by rank.
    """
    return {
        "step": step.step,
        "predicted_ms": summary.predicted_ms,
        "lower_bound_ms": summary.lower_bound_ms,
        "gap": summary.gap,
        "planning_ms": step.planning_ms,
        "tokens": summary.tokens,
        "sequences": summary.sequences,
        "strategy": summary.strategy,
        "measured_ms": step.measured_ms,
        "ranks_measured": step.ranks_measured,
        "error": compute_error(
            summary.slowest_rank_ms, summary.ranks, step.measured_ms, step.ranks_measured
        ),
        "ranks_acknowledged": sum(last >= step.step for last in acknowledged),
    }


class ReadyPlan:
    """A plan with its views written out, so that handing one out is sending bytes.

    In jobs of ``FAN_OUT_RANKS`` or more, whose rank 0 makes the views, ``views`` is None until
    ``with_views``. Made when the plan is at hand (``plan``), or from the row of the store;
    ``planning_ms``: time that planning it has just taken. ``RowDamaged`` for a row that is no plan.
    """

    def __init__(
        self, stored: StoredPlan, plan: Plan | None = None, *, planning_ms: float = 0.0
    ) -> None:
        self.step = stored.step
        self.digest = stored.digest
        self.planning_ms = planning_ms
        self.line = stored.line.encode()
        plan = plan or read_stored(stored)
        self.world_size = plan.world_size
        self.lost_ranks = frozenset(plan.lost_ranks)
        self.views: list[bytes] | None = None
        if plan.world_size < FAN_OUT_RANKS:
            self.views = views_json(plan, digest=stored.digest)
        self.summary = PlanSummary.from_plan(plan, len(plan.ids))
        self.size = len(self.line) + sum(map(len, self.views or ()))
        """Bytes that it keeps in memory."""

    def with_views(self) -> ReadyPlan:
        """Return the plan with its views written out, which takes a second for 10,000 ranks."""
        if self.views is not None:
            return self
        complete = copy.copy(self)
        complete.views = views_json(self.plan, digest=self.digest)
        complete.size += sum(map(len, complete.views))
        complete.__dict__.pop("plan", None)  # read again when needed
        return complete

    @cached_property
    def plan(self) -> Plan:
        """Decode the plan, for less frequent requests."""
        return read_stored(StoredPlan(self.step, self.digest, self.line.decode()))


def read_stored(stored: StoredPlan) -> Plan:
    """Read a plan that the store has kept; ``RowDamaged`` if it differs from the plan."""
    try:
        return from_json(stored.line)
    except PlanError as error:
        raise RowDamaged(f"the store's plan of step {stored.step} is damaged: {error}") from error
