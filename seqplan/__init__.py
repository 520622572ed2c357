"""Plans for training large Transformers on sequences of very different lengths.

The names here are those that a user starts from; they load their modules on first use,
so that ``import seqplan`` costs nothing. Behind them, in the order of the flow: ``plans`` (the
format), ``costs`` (cost models and lengths), ``planner`` (proposals and steps), ``runtime``
(each rank's part), ``profiler`` (measurements on devices) and ``api`` (command line, service).
``huggingface`` trains models of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.whole_package import use_whole_package

use_whole_package(__name__)

from seqplan.plans.lazy_exports import lazy_names  # noqa: E402
from seqplan.plans.version import VERSION as __version__  # noqa: E402

if TYPE_CHECKING:
    from seqplan import huggingface, runtime
    from seqplan.api.client.client import AsyncClient, Client
    from seqplan.api.client.exchange import ServiceError
    from seqplan.costs.lengths import read_lengths
    from seqplan.costs.profile import Profile
    from seqplan.costs.shipped.catalogue import find_profile
    from seqplan.costs.vision_tower import VisionTower
    from seqplan.planner.balance.balance_ranks import balance
    from seqplan.planner.balance.balanced import Balanced
    from seqplan.planner.balance.cost import Cost
    from seqplan.planner.balance.mode import Mode
    from seqplan.planner.balance.phase import Phase
    from seqplan.planner.balance.slow_ranks import SlowRanks
    from seqplan.planner.batches.batch import Batch
    from seqplan.planner.errors import Infeasible
    from seqplan.planner.proposal.document import Proposal
    from seqplan.planner.proposal.make_proposal import make_proposal
    from seqplan.planner.step.shapes_planner import choose_plan_shapes
    from seqplan.planner.step.step_planner import StepPlanner
    from seqplan.planner.workers.in_process import Planner
    from seqplan.planner.workload import Workload
    from seqplan.plans.construct import construct_plan
    from seqplan.plans.explain import explain
    from seqplan.plans.format.codec import digest, from_json, to_json
    from seqplan.plans.format.plan_file import read_plans, write_plans
    from seqplan.plans.plan import Plan
    from seqplan.plans.scheme import Scheme, Strategy
    from seqplan.plans.views.rank_view import RankView, rank_view

_HOMES = {
    "api.client.client": ("AsyncClient", "Client"),
    "api.client.exchange": ("ServiceError",),
    "planner.balance.balance_ranks": ("balance",),
    "planner.balance.balanced": ("Balanced",),
    "planner.balance.cost": ("Cost",),
    "planner.balance.phase": ("Phase",),
    "planner.balance.mode": ("Mode",),
    "planner.balance.slow_ranks": ("SlowRanks",),
    "planner.batches.batch": ("Batch",),
    "planner.workload": ("Workload",),
    "planner.errors": ("Infeasible",),
    "planner.proposal.document": ("Proposal",),
    "planner.proposal.make_proposal": ("make_proposal",),
    "planner.workers.in_process": ("Planner",),
    "planner.step.shapes_planner": ("choose_plan_shapes",),
    "planner.step.step_planner": ("StepPlanner",),
    "plans.construct": ("construct_plan",),
    "plans.explain": ("explain",),
    "plans.format.codec": ("digest", "from_json", "to_json"),
    "plans.format.plan_file": ("read_plans", "write_plans"),
    "plans.plan": ("Plan",),
    "plans.scheme": ("Scheme", "Strategy"),
    "plans.views.rank_view": ("RankView", "rank_view"),
    "costs.lengths": ("read_lengths",),
    "costs.profile": ("Profile",),
    "costs.vision_tower": ("VisionTower",),
    "costs.shipped.catalogue": ("find_profile",),
}

_NAMESPACES = ("huggingface", "runtime")

__all__ = [
    "AsyncClient",
    "Balanced",
    "Batch",
    "Client",
    "Cost",
    "Infeasible",
    "Mode",
    "Phase",
    "Plan",
    "Planner",
    "Profile",
    "Proposal",
    "RankView",
    "Scheme",
    "ServiceError",
    "SlowRanks",
    "StepPlanner",
    "Strategy",
    "VisionTower",
    "Workload",
    "__version__",
    "balance",
    "choose_plan_shapes",
    "construct_plan",
    "digest",
    "explain",
    "find_profile",
    "from_json",
    "huggingface",
    "make_proposal",
    "rank_view",
    "read_lengths",
    "read_plans",
    "runtime",
    "to_json",
    "write_plans",
]


__getattr__ = lazy_names(__name__, _HOMES, _NAMESPACES)
