"""The execution plan of a step: its data, its text, its invariants, and each rank's part.

The names that a reader or writer of plans needs, loaded on first use, so that importing the package
imports no numpy. Read ``scheme`` and ``plan`` first, then ``groups``, ``schedule`` and
``one_f_one_b`` (what follows from a plan), ``format`` (plans as JSON) and ``views`` (what one rank
does). ``lint`` (its invariants) and ``explain`` (a description) are modules with a function of
the same name, ``lint.lint`` and ``explain.explain``; ``ranges``, ``lazy_exports`` and ``version``
serve all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.plans.format.codec import PlanError, digest, from_json, to_json
    from seqplan.plans.format.plan_file import find_step, read_plans, write_plans
    from seqplan.plans.format.schema import plan_json_schema
    from seqplan.plans.plan import Considered, MicroBatch, Plan, PlannedPipeline, Provenance
    from seqplan.plans.scheme import Scheme, Strategy
    from seqplan.plans.views.collectives import collectives
    from seqplan.plans.views.decode_view import decode_view
    from seqplan.plans.views.rank_view import RankView, rank_view, rank_views

_HOMES = {
    "format.codec": ("PlanError", "digest", "from_json", "to_json"),
    "format.plan_file": ("find_step", "read_plans", "write_plans"),
    "format.schema": ("plan_json_schema",),
    "plan": ("Considered", "MicroBatch", "Plan", "PlannedPipeline", "Provenance"),
    "scheme": ("Scheme", "Strategy"),
    "views.collectives": ("collectives",),
    "views.decode_view": ("decode_view",),
    "views.rank_view": ("RankView", "rank_view", "rank_views"),
}

__all__ = [
    "Considered",
    "MicroBatch",
    "Plan",
    "PlanError",
    "PlannedPipeline",
    "Provenance",
    "RankView",
    "Scheme",
    "Strategy",
    "collectives",
    "decode_view",
    "digest",
    "find_step",
    "from_json",
    "plan_json_schema",
    "rank_view",
    "rank_views",
    "read_plans",
    "to_json",
    "write_plans",
]


__getattr__ = lazy_names(__name__, _HOMES)
