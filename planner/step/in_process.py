"""Planning inside a training program: lengths in, a plan out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import find_profile
from seqplan.planner.batches.batch import MOST_TOKENS, Batch, whole_lengths
from seqplan.planner.cluster import Cluster
from seqplan.planner.errors import Infeasible
from seqplan.planner.lockstep.options import AS_NAMES, check_planning_in_lockstep, check_rounds
from seqplan.planner.problem import PACKINGS, PlanningProblem
from seqplan.planner.proposal.backends import find_backend
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import layout_text, parse_layout
from seqplan.plans.plan import Plan
from seqplan.plans.scheme import Scheme

if TYPE_CHECKING:
    import numpy.typing as npt

    from seqplan.planner.sync.times import SyncTimes


class PlannerOptions(TypedDict, total=False):
    """Keywords of ``Planner`` for any source."""

    static_groups: bool
    packing: str
    seed: int
    prove: bool
    exact: bool


class ProfileOptions(PlannerOptions, total=False):
    """Keywords of ``Planner`` for a profile."""

    layout: str | None
    sync: SyncTimes | None
    lockstep: bool
    micro_step_multiple: int
    trainer: str | None


class Planner:
    """Plans each step inside a training program, the same on every rank that gives equal lengths.

    From a proposal (its candidates, cluster and sync), or from a profile, which requires ``gpus``
    and ``max_len`` (tokens): strategies are then constructed for each step from all schemes, in
    whichever layout is fastest with its sync. No state passes from step to step: any rank and any
    restart makes equal plans. ``layout``: only this one, such as ``tp4``, for trainers that cannot
    change it. ``sync``: by default derived for each layout. ``static_groups``: groups stay within a
    step. ``lockstep``: all ranks run their k-th micro-batches together; the number of micro-steps
    is a multiple of ``micro_step_multiple``. ``trainer``: only schemes that it runs
    (``seqplan.planner.proposal.backends``). ``prove``: whether plans have a close bound; without it
    they take half the time with a bound that takes microseconds, and the method ``prove`` makes it
    close later. ``exact``: solve steps of few sequences that keep a large gap, which takes seconds
    for each. ``packing``: see ``PlanningOptions``. Construction imports all that planning requires:
    the first step takes no longer than others.

    ``TypeError`` and ``ValueError`` name the argument; ``Infeasible`` if no scheme fits.
    """

    def __init__(
        self,
        source: Profile | Proposal | str,
        gpus: int | None = None,
        max_len: int | None = None,
        *,
        layout: str | None = None,
        sync: SyncTimes | None = None,
        static_groups: bool = False,
        lockstep: bool = False,
        micro_step_multiple: int = 1,
        trainer: str | None = None,
        packing: str = PACKINGS[0],
        seed: int = 0,
        prove: bool = True,
        exact: bool = False,
    ) -> None:
        switches = {"static_groups": static_groups, "lockstep": lockstep}
        switches |= {"prove": prove, "exact": exact}
        for name, switch in switches.items():
            if type(switch) is not bool:
                raise TypeError(f"{name}: {switch!r}. Give True or False")
        if isinstance(source, Proposal):
            stated = {"gpus": gpus, "max_len": max_len, "layout": layout, "sync": sync}
            stated |= {"lockstep": lockstep or None, "trainer": trainer}
            stated |= {"micro_step_multiple": None if micro_step_multiple == 1 else 0}
            if given := [name for name, value in stated.items() if value is not None]:
                raise ValueError(f"{given[0]} is stated by the proposal; leave it out")
            problem = source.problem
        elif isinstance(source, str | Profile):
            problem = _problem_of_profile(
                find_profile(source) if isinstance(source, str) else source,
                gpus,
                max_len,
                layout=layout,
                sync=sync,
                static_groups=static_groups,
                lockstep=lockstep,
                micro_step_multiple=micro_step_multiple,
                trainer=trainer,
            )
        else:
            raise TypeError(f"source: {source!r}. Give a profile, a proposal, or a profile's name")
        if problem.in_lockstep:
            check_planning_in_lockstep(
                static_groups, packing != PACKINGS[0], spelled=("static_groups", "packing")
            )
        self._problem = problem
        self._planner = StepPlanner(
            problem, seed, packing, regrouping=not static_groups, prove=prove, exact=exact
        )
        self._step = 0

    @classmethod
    def from_profile(
        cls, profile: Profile | str, gpus: int, max_len: int, **options: Unpack[ProfileOptions]
    ) -> Planner:
        """Plan from a profile, its name or its file; ``options``: keywords of ``Planner``."""
        return cls(profile, gpus, max_len, **options)

    @classmethod
    def from_proposal(
        cls, proposal: Proposal | Path | str, **options: Unpack[PlannerOptions]
    ) -> Planner:
        """Plan from a proposal or its file; ``options``: keywords of ``Planner``."""
        if isinstance(proposal, str | Path):
            proposal = Proposal.load(Path(proposal))
        if not isinstance(proposal, Proposal):
            raise TypeError(f"proposal: {proposal!r}. Give a proposal or its file")
        return cls(proposal, **options)

    @property
    def gpus(self) -> int:
        """Return the GPUs that plans are for."""
        return self._problem.cluster.gpus

    @property
    def resident_bytes(self) -> float:
        """Return what the profile counts on a GPU beside activations, at tp = pp = 1: parameters,
        gradients and its part of the states."""
        memory, cluster = self._problem.profile.memory, self._problem.cluster
        held = memory.count_fixed_bytes(Scheme(), cluster.gpus, cluster.max_len)
        return held - memory.context_bytes

    def plan(
        self,
        lengths: Iterable[int] | npt.NDArray[np.integer],
        ids: Sequence[int] | npt.NDArray[np.integer] | None = None,
        loss_tokens: int | None = None,
        step: int | None = None,
    ) -> Plan:
        """Plan one step of sequences of these ``lengths`` (tokens).

        ``ids``: their numbers in the data set, by default their places; ``loss_tokens``: labels in
        the loss, by default every token but the first of each sequence; ``step``: by default one
        more than the last. ``ValueError`` for lengths that are no whole numbers above 0 or exceed
        ``max_len``, for ids, a step or loss tokens that are no whole numbers from 0 on, for an id
        that is there twice, and for more loss tokens than tokens; ``Infeasible`` if no scheme
        holds a sequence.
        """
        number = self._step if step is None else step
        batch = self._batch(number, lengths, ids, loss_tokens)
        plan = self._planner.plan(batch)
        self._step = number + 1
        return plan

    def prove(self, plan: Plan) -> Plan:
        """Return a plan with the closest bound that can be proven; see ``StepPlanner.prove``."""
        return self._planner.prove(plan)

    def _batch(
        self,
        step: int,
        lengths: Iterable[int] | npt.NDArray[np.integer],
        ids: Sequence[int] | npt.NDArray[np.integer] | None,
        loss_tokens: int | None,
    ) -> Batch:
        limit = self._problem.cluster.max_len
        try:
            number = _whole("step", step)
            whole = whole_lengths(lengths)
            numbers = range(len(whole)) if ids is None else [_whole("an id", i) for i in ids]
            if ids is not None and len(set(numbers)) < len(numbers):
                twice = next(i for i in numbers if numbers.count(i) > 1)
                raise ValueError(
                    f"id {twice} is twice in the step; give each sequence a separate id"
                )
            counted = None if loss_tokens is None else _whole("loss_tokens", loss_tokens)
        except (TypeError, ValueError) as error:
            raise type(error)(f"step {step}: {error}") from None
        batch = Batch(number, tuple(numbers), tuple(whole.tolist()), counted)
        if batch.longest > limit:
            sample = batch.ids[batch.lengths.index(batch.longest)]
            raise ValueError(
                f"step {step}: sequence {sample} has {batch.longest} tokens, beyond max_len "
                f"{limit}; truncate it or plan for more"
            )
        return batch


def _whole(name: str, value: object) -> int:
    """Return a whole number as it is; ``ValueError`` for any other, by its name."""
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name} must be a whole number, not {value!r}") from None


def _problem_of_profile(
    profile: Profile,
    gpus: int | None,
    max_len: int | None,
    *,
    layout: str | None,
    sync: SyncTimes | None,
    static_groups: bool,
    lockstep: bool,
    micro_step_multiple: int,
    trainer: str | None,
) -> PlanningProblem:
    """Make the problem of planning from a profile alone; errors as ``Planner`` raises them."""
    if layout is not None and not isinstance(layout, str):
        raise TypeError(f"layout: {layout!r}. Give text, such as 'tp4' or 'tp2.pp2'")
    if max_len is not None and type(max_len) is int and max_len > MOST_TOKENS:
        raise ValueError(f"max_len must be {MOST_TOKENS} or less, not {max_len}")
    if gpus is None or max_len is None:
        raise ValueError("planning from a profile needs gpus and max_len")
    if trainer is not None:
        backend = find_backend(trainer)
        backend.check_without_data()
        profile, lockstep = backend.usable_profile(profile, gpus), backend.lockstep or lockstep
    check_rounds(
        profile, lockstep, micro_step_multiple, static_groups=static_groups, spelled=AS_NAMES
    )
    if layout is not None:
        degrees = parse_layout(layout)
        layouts = sorted({(entry.scheme.tp, entry.scheme.pp) for entry in profile.schemes})
        if degrees not in layouts:
            known = ", ".join(layout_text(known) for known in layouts)
            raise ValueError(f"profile {profile.name} has no layout {layout}; it has {known}")
        profile = profile.restrict(layout=degrees)
    cluster = Cluster(gpus, max_len, max_len)
    if not cluster.models(profile):
        raise Infeasible(f"no scheme of {profile.name} fits {gpus} GPUs; add GPUs")
    if sync is not None and profile.lockstep:
        raise ValueError(
            f"profile {profile.name} is of ZeRO-3, whose gathers are part of its latency; leave "
            "sync out"
        )
    if sync is None and not profile.lockstep:
        sync = choose_sync(profile, gpus)
    return PlanningProblem(
        profile=profile,
        cluster=cluster,
        sync=sync,
        static_groups=static_groups,
        lockstep=lockstep,
        micro_step_multiple=micro_step_multiple,
    )
