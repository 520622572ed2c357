"""Plans for training large Transformers on sequences of very different lengths.

The names here are those that a user starts from; they load what they need when they are first asked
for, so that ``import seqplan`` costs nothing. Behind them, in the order of the flow: ``plans`` (the
format), ``profiler`` (cost models and lengths), ``planner`` (proposals and steps), ``runtime``
(what each rank runs) and ``api`` (command line and service).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.whole_package import use_whole_package

use_whole_package(__name__)

from seqplan.plans.lazy_face import lazy_names  # noqa: E402
from seqplan.plans.version import VERSION as __version__  # noqa: E402

if TYPE_CHECKING:
    from seqplan.planner.balancing.balance_ranks import Balanced, balance
    from seqplan.planner.balancing.cost import Cost
    from seqplan.planner.batches.batch import Batch
    from seqplan.planner.cluster import Cluster
    from seqplan.planner.errors import Infeasible
    from seqplan.planner.proposal.document import ProposalDocument
    from seqplan.planner.proposal.make_proposal import make_proposal
    from seqplan.planner.step.in_process import Planner
    from seqplan.planner.step.step_planner import StepPlanner
    from seqplan.plans.format.plan_file import read_plans, write_plans
    from seqplan.plans.plan import Plan
    from seqplan.plans.scheme import Scheme, Strategy
    from seqplan.plans.views.rank_view import RankView, rank_view
    from seqplan.profiler.lengths import read_lengths
    from seqplan.profiler.profile import Profile
    from seqplan.profiler.shipped.catalogue import find_profile

_HOMES = {
    "planner.balancing.balance_ranks": ("Balanced", "balance"),
    "planner.balancing.cost": ("Cost",),
    "planner.batches.batch": ("Batch",),
    "planner.cluster": ("Cluster",),
    "planner.errors": ("Infeasible",),
    "planner.proposal.document": ("ProposalDocument",),
    "planner.proposal.make_proposal": ("make_proposal",),
    "planner.step.in_process": ("Planner",),
    "planner.step.step_planner": ("StepPlanner",),
    "plans.format.plan_file": ("read_plans", "write_plans"),
    "plans.plan": ("Plan",),
    "plans.scheme": ("Scheme", "Strategy"),
    "plans.views.rank_view": ("RankView", "rank_view"),
    "profiler.lengths": ("read_lengths",),
    "profiler.profile": ("Profile",),
    "profiler.shipped.catalogue": ("find_profile",),
}

__all__ = [
    "Balanced",
    "Batch",
    "Cluster",
    "Cost",
    "Infeasible",
    "Plan",
    "Planner",
    "Profile",
    "ProposalDocument",
    "RankView",
    "Scheme",
    "StepPlanner",
    "Strategy",
    "__version__",
    "balance",
    "find_profile",
    "make_proposal",
    "rank_view",
    "read_lengths",
    "read_plans",
    "write_plans",
]


__getattr__ = lazy_names(__name__, _HOMES)
