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
from seqplan.plans.version import VERSION  # noqa: E402

__version__ = VERSION

if TYPE_CHECKING:
    from seqplan import huggingface as huggingface
    from seqplan import runtime as runtime
    from seqplan.api.client.client import AsyncClient as AsyncClient
    from seqplan.api.client.client import Client as Client
    from seqplan.api.client.exchange import ServiceError as ServiceError
    from seqplan.costs.lengths import read_lengths as read_lengths
    from seqplan.costs.model_files.vision_tower import VisionTower as VisionTower
    from seqplan.costs.profile import Profile as Profile
    from seqplan.costs.shipped.catalogue import find_profile as find_profile
    from seqplan.planner.balance.balance_ranks import balance as balance
    from seqplan.planner.balance.balanced import Balanced as Balanced
    from seqplan.planner.balance.cost import Cost as Cost
    from seqplan.planner.balance.mode import Mode as Mode
    from seqplan.planner.balance.phase import Phase as Phase
    from seqplan.planner.balance.slow_ranks import SlowRanks as SlowRanks
    from seqplan.planner.batches.batch import Batch as Batch
    from seqplan.planner.errors import Infeasible as Infeasible
    from seqplan.planner.proposal.document import Proposal as Proposal
    from seqplan.planner.proposal.make_proposal import make_proposal as make_proposal
    from seqplan.planner.step.shapes_planner import choose_plan_shapes as choose_plan_shapes
    from seqplan.planner.step.step_planner import StepPlanner as StepPlanner
    from seqplan.planner.workers.in_process import Planner as Planner
    from seqplan.planner.workload import Workload as Workload
    from seqplan.plans.construct import construct_plan as construct_plan
    from seqplan.plans.explain import explain as explain
    from seqplan.plans.format.codec import digest as digest
    from seqplan.plans.format.codec import from_json as from_json
    from seqplan.plans.format.codec import to_json as to_json
    from seqplan.plans.format.plan_file import read_plans as read_plans
    from seqplan.plans.format.plan_file import write_plans as write_plans
    from seqplan.plans.plan import Plan as Plan
    from seqplan.plans.scheme import Scheme as Scheme
    from seqplan.plans.scheme import Strategy as Strategy
    from seqplan.plans.views.rank_view import RankView as RankView
    from seqplan.plans.views.rank_view import rank_view as rank_view

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__, _names = lazy_names(__name__, __file__)
    __all__ = sorted(("__version__", *_names))
