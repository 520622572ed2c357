"""Plans for steps: which strategies to train with, and which ranks run each sequence.

The names that a caller needs, loaded on first use, so that importing the package imports no numpy.
In order of use: ``proposal`` makes candidate strategies for a data set from ``strategies`` and
``bounds``; ``step`` (``lockstep`` if all ranks wait for each other) plans each of the ``batches``
by ``placement``; ``workers`` plan ahead of the training; ``balance`` is for trainers of one scheme;
``comparison`` runs ``systems`` against it by ``simulation``. ``workload``, ``sync`` and ``errors``
belong to all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.planner.batches.batch import Batch
    from seqplan.planner.batches.batches_file import read_batches
    from seqplan.planner.batches.sampler import Sampler, SamplerState
    from seqplan.planner.comparison.compare import compare
    from seqplan.planner.comparison.results import Comparison
    from seqplan.planner.errors import Infeasible
    from seqplan.planner.proposal.document import Proposal, ProposalError
    from seqplan.planner.proposal.make_proposal import make_proposal
    from seqplan.planner.step.step_planner import StepPlanner
    from seqplan.planner.sync.times import SyncTimes
    from seqplan.planner.workers.produce import produce
    from seqplan.planner.workload import Workload

_HOMES = {
    "batches.batch": ("Batch",),
    "batches.batches_file": ("read_batches",),
    "batches.sampler": ("Sampler", "SamplerState"),
    "workload": ("Workload",),
    "comparison.compare": ("compare",),
    "comparison.results": ("Comparison",),
    "errors": ("Infeasible",),
    "sync.times": ("SyncTimes",),
    "proposal.document": ("Proposal", "ProposalError"),
    "proposal.make_proposal": ("make_proposal",),
    "step.step_planner": ("StepPlanner",),
    "workers.produce": ("produce",),
}

__all__ = [
    "Batch",
    "Comparison",
    "Infeasible",
    "Proposal",
    "ProposalError",
    "Sampler",
    "SamplerState",
    "StepPlanner",
    "SyncTimes",
    "Workload",
    "compare",
    "make_proposal",
    "produce",
    "read_batches",
]


__getattr__ = lazy_names(__name__, _HOMES)
