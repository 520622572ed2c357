"""The flow of a proposal: lengths → sampled batches → candidates → document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Literal

import numpy as np
import numpy.typing as npt

from seqplan.costs.lengths.digest import lengths_digest
from seqplan.costs.profile import Profile
from seqplan.planner.argument_checks import check_kind, read_seed
from seqplan.planner.batches.batch import Batch, whole_lengths
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.bounds.expert_sharing import expert_bound_ms
from seqplan.planner.errors import Infeasible, OptionError
from seqplan.planner.execution import ExecutionKind
from seqplan.planner.placement.fleet import Models
from seqplan.planner.problem import PlanningProblem
from seqplan.planner.proposal.backends import apply_backend, find_backend
from seqplan.planner.proposal.candidates import (
    CandidatePool,
    Effort,
    Progress,
    evaluate_strategies,
    propose,
)
from seqplan.planner.proposal.document import Candidate, Proposal
from seqplan.planner.proposal.eq4 import continuous_proposal, integer_strategies
from seqplan.planner.proposal.expert_choice import (
    bound_degree,
    choose_degree,
    choose_group_layout,
    price_degree,
)
from seqplan.planner.proposal.expert_rows import PRICED_BATCHES, ExpertRow
from seqplan.planner.proposal.kept_strategies import Proposed
from seqplan.planner.proposal.micro_steps_proposal import propose_micro_steps
from seqplan.planner.proposal.proposal_sync import choose_proposal_sync
from seqplan.planner.proposal.uniform import keep_best_scheme
from seqplan.planner.sync.choice import check_sync, derive_again
from seqplan.planner.sync.times import NO_SYNC, SyncTimes
from seqplan.planner.workload import Workload
from seqplan.plans.scheme import Strategy

METHODS = ("search", "eq4")
"""Our proposal, and the published one."""


_SAMPLE_SEED = 0x5E9
"""Keeps the proposal's sampled batches apart from the ones that a plan of the same seed draws."""


def make_proposal(
    profile: Profile,
    workload: Workload,
    lengths: Sequence[int] | npt.NDArray[np.integer],
    *,
    seed: int = 0,
    method: str = "search",
    sync: SyncTimes | Literal["derived"] | None = "derived",
    execution: ExecutionKind | None = None,
    micro_step_multiple: int = 1,
    trainer: str | None = None,
    progress: Progress | None = None,
) -> Proposal:
    """Propose strategies for a data set; ``lengths`` in tokens.

    Sequences longer than ``workload.max_len`` count as truncated to it. Strategies are judged and
    later chosen by their time with the ``sync``, by default derived for each layout. None leaves
    the sync out, as do the method eq4 and ZeRO-3, under which there is no choice that it could
    decide. ``execution``: by default ``regroup``, under ZeRO-3 ``lockstep``, and what the
    ``trainer`` runs, one of ``BACKENDS``, whose schemes and ZeRO stage then hold. In lockstep the
    number of micro-steps is a multiple of ``micro_step_multiple``. Raises ``Infeasible`` when no
    scheme fits the GPUs or holds the longest sequence; ``OptionError`` for options that exclude
    each other, ``ValueError`` for lengths that are no whole numbers above 0.

    If the profile has experts on several degrees of ranks, each degree is proposed for, and the one
    is taken with which a few batches are planned fastest.
    """
    check_kind("profile", profile, Profile, "a profile, such as find_profile(name)")
    check_kind("workload", workload, Workload, "Workload(gpus, max_len, tokens)")
    check_sync(sync)
    lengths, seed = whole_lengths(lengths), read_seed(seed)
    profile, kind = apply_backend(profile, workload.gpus, execution, micro_step_multiple, trainer)
    request = _Request(
        workload, lengths, seed, method, kind, micro_step_multiple, trainer, progress
    )
    if profile.expert_degrees != (1,):
        return _propose_degrees(profile, sync, request)
    if sync == "derived":
        sync = choose_proposal_sync(profile, workload.gpus, method=method, trainer=trainer)
    return _propose(profile, sync, request)


@dataclass(frozen=True)
class _Request:
    """Inputs of a proposal in addition to profile and sync."""

    workload: Workload
    lengths: npt.NDArray[np.integer]
    seed: int
    method: str
    kind: ExecutionKind
    micro_step_multiple: int
    trainer: str | None
    progress: Progress | None


def _propose_degrees(
    profile: Profile, sync: SyncTimes | Literal["derived"] | None, request: _Request
) -> Proposal:
    """Propose with each degree of expert parallelism; return the fastest with all rows."""
    workload, lengths = request.workload, request.lengths
    sampler = Sampler(lengths, workload.tokens, workload.max_len, request.seed + _SAMPLE_SEED)
    batches = list(sampler.batches(PRICED_BATCHES))
    problems: list[tuple[float, PlanningProblem]] = []
    for degree in profile.expert_degrees:
        at_degree = profile.at_expert_parallel(degree)
        if sync == "derived":
            times = choose_proposal_sync(
                at_degree, workload.gpus, method=request.method, trainer=request.trainer
            )
        else:
            times = sync and derive_again(sync, at_degree, workload.gpus)
        problem = PlanningProblem(
            profile=at_degree, workload=workload, sync=times, execution=request.kind
        )
        problems.append((bound_degree(problem, batches), problem))
    rows: dict[int, ExpertRow] = {}
    proposals: dict[int, Proposal] = {}
    error: Infeasible | None = None
    best_ms = inf
    for bound_ms, problem in sorted(problems, key=lambda entry: entry[0]):
        degree = problem.profile.expert_parallel
        longest = max((model.max_sequence for model in problem.models.values()), default=0)
        if best_ms <= bound_ms < inf:
            rows[degree] = ExpertRow(degree, None, None, longest, round(bound_ms, 3))
            continue
        try:
            proposal = _propose(problem.profile, problem.sync, request)
            row = price_degree(proposal.problem, batches)
            proposals[degree], rows[degree] = choose_group_layout(proposal, batches, row, best_ms)
            best_ms = min(best_ms, rows[degree].expected_ms or inf)
        except Infeasible as why:
            error = why
            rows[degree] = ExpertRow(degree, None, None, longest)
    in_order = [rows[degree] for degree in profile.expert_degrees]
    chosen = choose_degree(in_order)
    if chosen is None:
        raise error or Infeasible(f"{workload.gpus} GPUs are too few for {profile.name}; add GPUs")
    best = proposals[chosen]
    if chosen == 1:
        return replace(best, experts=tuple(in_order))
    # Steps may be faster than the best candidate, in groups smaller than a block.
    judged = list(sampler.batches(best.judged))
    priced_ms = price_degree(best.problem, judged, request.progress).expected_ms or inf
    expected_ms = min(best.expected_ms, priced_ms)
    bound_ms = min(best.lower_bound_ms, expected_ms)
    return replace(best, experts=tuple(in_order), expected_ms=expected_ms, lower_bound_ms=bound_ms)


def _propose(profile: Profile, sync: SyncTimes | None, request: _Request) -> Proposal:
    """Propose for a profile of one degree of expert parallelism."""
    workload, lengths, kind = request.workload, request.lengths, request.kind
    method, seed, trainer = request.method, request.seed, request.trainer
    micro_step_multiple, progress = request.micro_step_multiple, request.progress
    check_method(profile, method, sync, lockstep=kind == "lockstep" or profile.lockstep)
    check_feasible(profile, workload, workload.models(profile), lengths)
    sampler = Sampler(lengths, workload.tokens, workload.max_len, seed + _SAMPLE_SEED)
    search = _CandidateSearch(
        sampler,
        workload,
        method,
        kind,
        sync,
        micro_step_multiple,
        trainer,
        progress,
        modes=len(profile.modes) > 1 and kind in ("static", "regroup"),
    )
    profile = search.keep_uniform(profile)
    pool = search.find(profile)
    bound_ms = pool.lower_bound_ms
    if profile.expert_parallel > 1:
        bound_ms = min(bound_ms, search.bound_experts_ms(profile))
    return Proposal(
        method=method,
        seed=seed,
        workload=workload,
        profile=profile,
        lengths={
            "sequences": len(lengths),
            "tokens": int(sampler.lengths.sum()),
            "truncated": sampler.truncated,
            "longest": search.longest,
            "digest": lengths_digest(lengths),
        },
        candidates=tuple(_round_candidate(proposed) for proposed in pool.candidates),
        expected_ms=round(pool.expected_ms, 3),
        lower_bound_ms=round(bound_ms - 5e-4, 3),
        judged=pool.judged,
        sync=None if profile.lockstep else sync,
        layouts=pool.layouts,
        execution=kind,
        micro_step_multiple=micro_step_multiple,
        trainer=trainer,
    )


@dataclass(frozen=True)
class _CandidateSearch:
    """Finds candidates over sampled batches, by method and kind of execution."""

    sampler: Sampler
    workload: Workload
    method: str
    kind: ExecutionKind
    sync: SyncTimes | None
    micro_step_multiple: int
    trainer: str | None
    progress: Progress | None
    modes: bool

    @cached_property
    def effort(self) -> Effort:
        """Return how many batches are searched and judged."""
        return Effort.choose(
            self.workload.gpus, several_spaces=self.sync is not None, modes=self.modes
        )

    @cached_property
    def batches(self) -> list[Batch]:
        """List the sampled batches."""
        return list(self.sampler.batches(self.effort.judged))

    @property
    def longest(self) -> int:
        """Return the longest sequence (tokens), truncated."""
        return int(self.sampler.lengths.max())

    def _in_lockstep(self, profile: Profile) -> bool:
        return self.kind == "lockstep" or profile.lockstep

    def keep_uniform(self, profile: Profile) -> Profile:
        """Keep the best scheme alone if replicas are to be equal."""
        backend = None if self.trainer is None else find_backend(self.trainer)
        if self.kind != "uniform" and (backend is None or not backend.uniform):
            return profile
        return keep_best_scheme(
            profile,
            self.workload,
            self.batches[: self.effort.searched],
            self.longest,
            self.sync,
            lockstep=self._in_lockstep(profile),
            micro_step_multiple=self.micro_step_multiple,
        )

    def find(self, profile: Profile) -> CandidatePool:
        """Find the candidates."""
        models, workload = self._find_models(profile), self.workload
        derived = [entry.scheme for entry in profile.schemes if entry.origin == "derived"]
        if self._in_lockstep(profile):
            return propose_micro_steps(
                self.batches[: self.effort.searched],
                models,
                gpus=workload.gpus,
                max_len=self.longest,
                sync=None if profile.lockstep else self.sync or NO_SYNC,
                multiple=self.micro_step_multiple,
                derived=derived,
                progress=self.progress,
            )
        if self.method == "eq4":
            return self._find_by_eq4(models)
        return propose(
            self.batches,
            models,
            gpus=workload.gpus,
            max_len=self.longest,
            effort=self.effort,
            sync=self.sync,
            derived=derived,
            progress=self.progress,
            regroup=self.kind == "regroup",
        )

    def _find_models(self, profile: Profile) -> Models:
        """Return the schemes of candidates: of whole blocks of experts, if those hold the data.

        Steps may be planned with smaller groups all the same.
        """
        whole = self.workload.list_whole_blocks(profile)
        if max((model.max_sequence for model in whole.values()), default=0) >= self.longest:
            return whole
        return self.workload.models(profile)

    def bound_experts_ms(self, profile: Profile) -> float:
        """Bound the mean of the batches over all groups whose experts are split (ms)."""
        models = self.workload.models(profile)
        layouts = {(scheme.tp, scheme.pp) for scheme in models}
        exposed = [self.sync.compute_exposed_ms([k]) for k in layouts] if self.sync else [0.0]
        bounds = [
            expert_bound_ms(models.values(), profile.expert_parallel, batch, self.workload.gpus)
            for batch in self.batches[: self.effort.judged]
        ]
        return sum(bounds) / len(bounds) + min(exposed)

    def _find_by_eq4(self, models: Models) -> CandidatePool:
        """Find Eq. 4's strategies, judged like ours."""
        values, counts = np.unique(self.sampler.lengths, return_counts=True)
        ordered = list(models.values())
        continuous = continuous_proposal(ordered, values, counts.astype(np.float64))
        longest_of = integer_strategies(continuous, ordered, self.workload.gpus)
        strategies: list[Strategy] = sorted(longest_of, key=lambda s: (-longest_of[s], str(s)))
        return evaluate_strategies(
            strategies,
            self.batches,
            models,
            gpus=self.workload.gpus,
            max_len=self.longest,
            effort=self.effort,
            progress=self.progress,
        )


def _round_candidate(proposed: Proposed) -> Candidate:
    """Round a candidate's figures for the document."""
    expected_ms = None if np.isnan(proposed.expected_ms) else round(proposed.expected_ms, 3)
    return Candidate(
        proposed.strategy,
        max_sequence=proposed.max_sequence,
        expected_ms=expected_ms,
        runs=round(proposed.runs, 4),
        wins=round(proposed.wins, 4),
    )


def check_method(
    profile: Profile, method: str, sync: SyncTimes | None, *, lockstep: bool = False
) -> None:
    """Raise ``OptionError`` for an unknown method or one that the profile or sync rules out."""
    if method not in METHODS:
        raise OptionError(
            "{0} must be one of {methods}: {method!r}",
            "method",
            methods=", ".join(METHODS),
            method=method,
        )
    if lockstep and method == "eq4":
        raise OptionError(
            "{0} eq4 chooses strategies for a whole step, but in lockstep{why} each micro-step "
            "forms groups. Leave {0} out",
            "method",
            why=f" (profile {profile.name} is of ZeRO-3)" if profile.lockstep else "",
        )
    if method == "eq4" and sync is not None:
        raise OptionError("{0} eq4 does not weigh the {1}. Leave one of them out", "method", "sync")


def check_feasible(
    profile: Profile, workload: Workload, models: Models, lengths: npt.NDArray[np.integer]
) -> None:
    """Raise ``Infeasible`` when no scheme fits the GPUs or holds the longest sequence."""
    degree = profile.expert_parallel
    if workload.gpus % degree:
        raise Infeasible(
            f"experts on {degree} ranks: {degree} does not divide {workload.gpus} GPUs. Use "
            "another number of GPUs, or a profile with another degree"
        )
    if not models:
        shards = workload.optimizer_shards
        if shards and replace(workload, optimizer_shards=None).models(profile):
            raise Infeasible(
                f"optimizer_shards {shards}: states in so few parts leave no room for tokens on "
                f"any scheme of {profile.name}. Raise optimizer_shards"
            )
        smallest = min((entry.scheme for entry in profile.schemes), key=lambda s: s.gpus)
        why = f"the smallest scheme to choose from, {smallest}, takes {smallest.gpus}"
        if smallest.gpus <= workload.gpus:
            why = "the model states leave no room for tokens on any scheme that fits"
        few = "1 GPU is" if workload.gpus == 1 else f"{workload.gpus} GPUs are"
        raise Infeasible(f"{few} too few for {profile.name}: {why}; add GPUs")
    longest = min(int(lengths.max()), workload.max_len)
    limit = max(model.max_sequence for model in models.values())
    if longest > limit:
        place = int(np.argmax(lengths))
        best = max(models.values(), key=lambda model: model.max_sequence)
        raise Infeasible(
            f"sequence {place} has {longest} tokens, but on {workload.gpus} GPUs the longest that "
            f"any scheme of {profile.name} holds is {limit} ({best.scheme}); use --max-len {limit} "
            "to truncate, or more GPUs"
        )
