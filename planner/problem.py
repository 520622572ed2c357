"""The problem that planning solves at every step, and the options of how it is solved."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from seqplan.costs.profile import Profile
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.cluster import Cluster
from seqplan.planner.sync.times import SyncTimes, sync_fields
from seqplan.plans.format.canonical import canonical_json, digest_of
from seqplan.plans.scheme import Scheme, Strategy

PACKINGS = ("tight", "even")
"""Full micro-batches first, or all of about equal tokens; the predicted time is the same."""


@dataclass(frozen=True, kw_only=True)
class PlanningProblem:
    """Inputs of planning a step, except for its batch.

    ``sync``: None if strategies are chosen by forward and backward alone. ``strategies``: the
    candidates of a proposal; with none, every step constructs its strategy. ``regroup_layout``: the
    only ⟨tp, pp⟩ in which groups may change within a step, None for any. ``static_groups``: they
    stay.
    ``lockstep``: all ranks run their k-th micro-batches together; ``micro_step_multiple``: the
    number of micro-steps is a multiple of it. ``proposal_digest``: of the proposal, None without.
    """

    profile: Profile
    cluster: Cluster
    sync: SyncTimes | None
    strategies: tuple[Strategy, ...] = ()
    regroup_layout: tuple[int, int] | None = None
    static_groups: bool = False
    lockstep: bool = False
    micro_step_multiple: int = 1
    proposal_digest: str | None = None

    @property
    def in_lockstep(self) -> bool:
        """Whether all ranks run in lockstep: by choice, or under ZeRO-3."""
        return self.lockstep or self.profile.lockstep

    @cached_property
    def models(self) -> dict[Scheme, SchemeModel]:
        """Models of the schemes that fit the cluster."""
        return self.cluster.models(self.profile)

    @cached_property
    def digest(self) -> str:
        """Digest that plans record as their proposal's: of the proposal, else of these inputs."""
        if self.proposal_digest is not None:
            return self.proposal_digest
        fields = {
            "gpus": self.cluster.gpus,
            "max_len": self.cluster.max_len,
            "profile": self.profile.digest,
            "sync": None if self.sync is None else sync_fields(self.sync),
            "static_groups": self.static_groups,
            "lockstep": self.lockstep,
            "micro_step_multiple": self.micro_step_multiple,
        }
        return digest_of(canonical_json(fields))


@dataclass(frozen=True, kw_only=True)
class PlanningOptions:
    """How steps are planned: search, proof and packing. ``ValueError`` for an unknown packing.

    ``packing``: one of ``PACKINGS``; lockstep has one micro-batch a group and ignores it.
    ``regroup``: whether groups may change within a step, if that is faster. ``prove``: whether
    plans have the close bound; without it their bound takes microseconds. ``prove_lockstep``: spend
    seconds on a closer bound in lockstep (``lockstep.proof``). ``exact``: solve steps in which at
    most 60 sequences matter and whose proven gap is above 1 % by constraint programming
    (``planner.exact``), for seconds; their plan is then faster, or its bound higher, or both stay.
    """

    seed: int = 0
    packing: str = PACKINGS[0]
    regroup: bool = True
    prove: bool = True
    prove_lockstep: bool = False
    exact: bool = False

    def __post_init__(self) -> None:
        if self.packing not in PACKINGS:
            raise ValueError(
                f"unknown packing {self.packing!r}; choose one of {', '.join(PACKINGS)}"
            )
        if self.exact and not self.prove:
            raise ValueError("exact answers start from the close bound; leave prove=False out")

    def check(self, problem: PlanningProblem) -> None:
        """Raise ``ValueError`` for options that the problem does not support."""
        if self.exact and problem.in_lockstep:
            why = "the proposal is in lockstep"
            if problem.profile.lockstep:
                why = f"{problem.profile.name} runs in rounds (ZeRO-3)"
            raise ValueError(f"exact answers are for pipelines; {why}")
