"""The problem that planning solves at every step, and the options of how it is solved."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from seqplan.costs.profile import Profile
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.argument_checks import read_seed
from seqplan.planner.errors import OptionError
from seqplan.planner.execution import ExecutionKind, choose_execution, narrow_execution
from seqplan.planner.sync.times import SyncTimes, sync_fields
from seqplan.planner.workload import Workload
from seqplan.plans.format.canonical import canonical_json, digest_of
from seqplan.plans.scheme import Scheme, Strategy

MOST_ROBUST = 0.5
"""Share at most by which costs may be off."""

PACKINGS = ("tight", "even")
"""Full micro-batches first, or all of about equal tokens; the predicted time is the same."""


@dataclass(frozen=True, kw_only=True)
class PlanningProblem:
    """Inputs of planning a step, except for its batch.

    ``sync``: None if strategies are chosen by forward and backward alone. ``strategies``: the
    candidates of a proposal; with none, every step constructs its strategy. ``regroup_layout``: the
    only ⟨tp, pp⟩ in which groups may change within a step, None for any. ``execution``: how ranks
    execute a step; in lockstep the number of micro-steps is a multiple of ``micro_step_multiple``.
    ``proposal_digest``: of the proposal, None without. ``OptionError`` if execution and profile
    exclude each other. ``uniform``: the best
    homogeneous strategy for the data set, None if unknown. ``whole_blocks``: only schemes whose
    stages consist of whole blocks of experts.
    """

    profile: Profile
    workload: Workload
    sync: SyncTimes | None
    strategies: tuple[Strategy, ...] = ()
    regroup_layout: tuple[int, int] | None = None
    execution: ExecutionKind
    micro_step_multiple: int = 1
    proposal_digest: str | None = None
    uniform: Strategy | None = None
    whole_blocks: bool = False

    def __post_init__(self) -> None:
        choose_execution(self.execution, self.profile, self.micro_step_multiple)

    @property
    def in_lockstep(self) -> bool:
        """Whether all ranks run in lockstep: by choice, or under ZeRO-3."""
        return self.execution == "lockstep" or self.profile.lockstep

    @property
    def lockstep_reason(self) -> str:
        """Why all ranks run in lockstep, for errors."""
        if self.profile.lockstep:
            return f"profile {self.profile.name} is of ZeRO-3, which runs in lockstep"
        return "the problem is in lockstep"

    @cached_property
    def models(self) -> dict[Scheme, SchemeModel]:
        """Models of the schemes that fit the cluster."""
        if self.whole_blocks:
            return self.workload.list_whole_blocks(self.profile)
        return self.workload.models(self.profile)

    @cached_property
    def digest(self) -> str:
        """Digest that plans record as their proposal's: of the proposal, else of these inputs."""
        if self.proposal_digest is not None:
            return self.proposal_digest
        fields = {
            "gpus": self.workload.gpus,
            "max_len": self.workload.max_len,
            "profile": self.profile.digest,
            "sync": None if self.sync is None else sync_fields(self.sync),
            "execution": self.execution,
            "micro_step_multiple": self.micro_step_multiple,
        }
        return digest_of(canonical_json(fields))


@dataclass(frozen=True, kw_only=True)
class PlanningOptions:
    """How steps are planned: search, proof and packing. ``OptionError`` for values that are none.

    ``packing``: one of ``PACKINGS``. ``execution``: ``static`` plans a problem of regrouping
    without it; None as the problem has it. ``prove``: whether plans have the close bound; without
    it their bound takes microseconds. ``prove_lockstep``: spend seconds on a closer bound in
    lockstep (``lockstep.proof``). ``exact``: solve steps in which at most 60 sequences matter and
    whose proven gap is above 1 % by constraint programming (``planner.exact``), for seconds; their
    plan is then faster, or its bound higher, or both stay. ``slowdown``: ranks that are slower than
    the profile has it, each with its factor, None for a lost one; groups of a step then stay.
    ``shapes``: tokens on a rank to which micro-batches are padded; groups then stay as well.
    ``robust``: share by which a, b or c may be off. Steps are planned at each corner of that
    interval too. Of the plans that are at no corner slower than uniform execution, the one with the
    least mean time is taken.
    """

    seed: int = 0
    packing: str = PACKINGS[0]
    execution: ExecutionKind | None = None
    prove: bool = True
    prove_lockstep: bool = False
    exact: bool = False
    slowdown: tuple[tuple[int, float | None], ...] = ()
    shapes: tuple[int, ...] = ()
    robust: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", read_seed(self.seed))
        self._check_shapes()
        if self.packing not in PACKINGS:
            raise OptionError(
                "{0} must be one of {packings}: {packing!r}",
                "packing",
                packing=self.packing,
                packings=", ".join(PACKINGS),
            )
        if self.exact and not self.prove:
            raise OptionError("{0} starts from the close bound. Leave {1} out", "exact", "prove")
        if self.exact and self.slowdown:
            raise OptionError(
                "{0} solves pipelines of equal ranks. Leave {0} or {1} out", "exact", "slowdown"
            )
        if not 0 <= self.robust <= MOST_ROBUST:
            raise OptionError(
                "{0} must be a share from 0 to {most:g}: {share!r}",
                "robust",
                most=MOST_ROBUST,
                share=self.robust,
            )
        if self.robust and self.exact:
            raise OptionError("{0} solves at the profile's costs. Leave {1} out", "exact", "robust")
        if self.robust and self.slowdown:
            raise OptionError(
                "{0} plans for equal ranks. Leave {0} or {1} out", "robust", "slowdown"
            )

    def _check_shapes(self) -> None:
        for size in self.shapes:
            if type(size) is not int or size < 1:
                raise OptionError(
                    "{0}: {size!r}. Give tokens on a rank, as choose_plan_shapes finds them",
                    "shapes",
                    size=size,
                )
        if list(self.shapes) != sorted({*self.shapes}):
            raise OptionError("{0} {sizes}: must ascend", "shapes", sizes=list(self.shapes))
        if self.shapes and self.slowdown:
            raise OptionError("{0} with {1}: not supported. Leave {0} out", "shapes", "slowdown")

    def check_static(self, name: str, problem: PlanningProblem) -> None:
        """Reject what plans with loads or shapes (``name``) are not made with."""
        for other in ("exact", "robust"):
            if getattr(self, other):
                raise OptionError("{0} with {name}: not supported. Leave {0} out", other, name=name)
        if self.packing != PACKINGS[0]:
            raise OptionError(
                "{0} {packing} with {name}: not supported. Leave {0} out",
                "packing",
                name=name,
                packing=self.packing,
            )
        if problem.profile.lockstep:
            raise OptionError(
                "{name} are for pipelines: {lockstep}. Leave {name} out",
                name=name,
                lockstep=problem.lockstep_reason,
            )
        if problem.in_lockstep or self.execution == "regroup":
            raise OptionError(
                "{name} with {0} {kind}: only groups that stay within a step have it. Set {0} to "
                "static",
                "execution",
                name=name,
                kind="lockstep" if problem.in_lockstep else "regroup",
            )
        if problem.profile.expert_parallel > 1:
            raise OptionError(
                "{name} are for models whose experts are not split, and the profile's are on "
                "{degree} ranks. Leave {name} out",
                name=name,
                degree=problem.profile.expert_parallel,
            )

    def resolve_execution(self, problem: PlanningProblem) -> ExecutionKind:
        """Return the kind of execution to plan; ``OptionError`` for what it does not support."""
        wanted = self.execution
        if self.slowdown and wanted is None and problem.execution == "regroup":
            wanted = "static"
        execution = narrow_execution(wanted, problem.execution)
        if self.slowdown and execution == "regroup":
            raise OptionError(
                "{0} with {1} regroup: only groups that stay within a step are planned around slow "
                "ranks. Set {1} to static",
                "slowdown",
                "execution",
            )
        if problem.profile.expert_parallel > 1:
            for name in ("exact", "robust", "slowdown"):
                if getattr(self, name):
                    raise OptionError(
                        "{0} is for models whose experts are not split, and the profile's are on "
                        "{degree} ranks. Leave {0} out",
                        name,
                        degree=problem.profile.expert_parallel,
                    )
        if problem.in_lockstep:
            lockstep = problem.lockstep_reason
            for name in ("exact", "robust", "slowdown"):
                if getattr(self, name):
                    raise OptionError(
                        "{0} is for pipelines: {lockstep}. Leave {0} out", name, lockstep=lockstep
                    )
            if self.packing != PACKINGS[0]:
                raise OptionError(
                    "{0} {packing}: {lockstep}, with one micro-batch a group and micro-step. "
                    "Leave {0} out",
                    "packing",
                    packing=self.packing,
                    lockstep=lockstep,
                )
        return execution
