"""A published plan and its rank views as the bytes that go out."""

from __future__ import annotations

import copy
from functools import cached_property

from seqplan.api.service.plan_summary import PlanSummary
from seqplan.api.store.errors import RowDamaged
from seqplan.api.store.tables.plans import StoredPlan
from seqplan.plans.format.codec import from_json
from seqplan.plans.format.decode import PlanError
from seqplan.plans.plan import Plan
from seqplan.plans.views.rank_view import views_json
from seqplan.runtime.sources.http_source import FAN_OUT_RANKS


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
