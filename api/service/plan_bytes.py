"""A published plan and its rank views as the bytes that go out."""

from __future__ import annotations

from functools import cached_property

from seqplan.api.service.plan_summary import PlanSummary
from seqplan.api.store.tables.plans import StoredPlan
from seqplan.plans.format.codec import from_json
from seqplan.plans.plan import Plan
from seqplan.plans.views.rank_view import views_json


class ReadyPlan:
    """A plan with all its views written out, so that handing one out is sending bytes.

    Made where the plan is at hand (``plan``) or from what the store has.
    """

    def __init__(self, stored: StoredPlan, plan: Plan | None = None) -> None:
        self.step = stored.step
        self.digest = stored.digest
        self.line = stored.line.encode()
        plan = plan or from_json(stored.line)
        self.views = views_json(plan, digest=stored.digest)
        self.summary = PlanSummary.of(plan, len(plan.ids))
        self.size = len(self.line) + sum(map(len, self.views))
        """Bytes that it keeps in memory."""

    @cached_property
    def plan(self) -> Plan:
        """Read the plan itself, for what is asked less often."""
        return from_json(self.line.decode())
