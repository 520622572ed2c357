"""Planning inside a training program: lengths in, a plan out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from seqplan.costs.profile import Profile
from seqplan.planner.argument_checks import check_kind, check_list, read_integer, read_profile
from seqplan.planner.balance.phase import Phase, list_loads
from seqplan.planner.balance.slow_ranks import SlowRanks, list_usual_ms
from seqplan.planner.batches.batch import MOST_TOKENS, Batch, whole_lengths
from seqplan.planner.errors import Infeasible, OptionError
from seqplan.planner.placement.slowdown import Slowdown
from seqplan.planner.problem import PACKINGS, PlanningOptions, PlanningProblem
from seqplan.planner.proposal.backends import apply_backend, find_backend, uses_collectives
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.sync.choice import check_sync, choose_sync
from seqplan.planner.sync.times import SyncTimes, layout_text, parse_layout
from seqplan.planner.workload import Workload
from seqplan.plans.plan import Plan
from seqplan.plans.scheme import Scheme

if TYPE_CHECKING:
    import numpy.typing as npt

    from seqplan.planner.execution import ExecutionKind


class Planner:
    """Plans each step inside a training program.

    Ranks that give equal lengths get equal plans. From a proposal (its candidates, cluster and
    sync), or from a profile: strategies are then constructed for each step from all schemes, in
    whichever layout is fastest with its sync. No state passes from step to step but the factors of
    ``observe``, so plans are equal after a restart, too. Construction imports all that planning
    requires: the first step takes no longer than others.
    """

    def __init__(self, problem: PlanningProblem, options: PlanningOptions | None = None) -> None:
        fix = "Planner.from_profile or Planner.from_proposal"
        check_kind("problem", problem, PlanningProblem, fix)
        self._problem = problem
        self._options = options or PlanningOptions()
        self._planner = StepPlanner(problem, self._options)
        self._slow_ranks: SlowRanks | None = None
        self._step = 0

    @classmethod
    def from_profile(
        cls,
        profile: Profile | str,
        gpus: int,
        max_len: int,
        *,
        layout: str | None = None,
        sync: SyncTimes | Literal["derived"] | None = "derived",
        execution: ExecutionKind | None = None,
        micro_step_multiple: int = 1,
        trainer: str | None = None,
        packing: str = PACKINGS[0],
        seed: int = 0,
        prove: bool = True,
        exact: bool = False,
        slowdown: Sequence[float | None] | None = None,
        shapes: Sequence[int] | None = None,
        expert_parallel: int | None = None,
    ) -> Planner:
        """Plan from a profile, its name or its file.

        For sequences of up to ``max_len`` tokens.

        ``layout``: only this one, such as ``tp4``, for trainers that cannot change it. ``sync``:
        times to choose strategies with, by default derived for each layout; None leaves it out, and
        groups then stay within a step. ``execution``: by default ``regroup``, under ZeRO-3
        ``lockstep``, in which the number of micro-steps is a multiple of ``micro_step_multiple``.
        ``trainer``: only schemes that it runs (``seqplan.planner.proposal.backends``). ``prove``:
        whether plans have a close bound; without it they take half the time with a bound that takes
        microseconds, the method ``prove`` makes it close later, and lockstep plans far from it are
        not improved. ``exact``: solve steps of few sequences that keep a large gap, which takes
        seconds for each. ``packing``: see ``PlanningOptions``. ``slowdown``: how many times as long
        each rank takes as the profile has it; pipelines with a slow rank get less, and groups stay
        within a step; None for a lost rank, without which groups are formed. ``shapes``: tokens on
        a rank to which micro-batches are padded (``choose_plan_shapes``); groups stay as well.
        ``expert_parallel``: over how many ranks experts are split, if the profile has several
        degrees. ``TypeError`` and ``ValueError`` name the argument; ``Infeasible`` if no scheme
        fits.
        """
        profile = read_profile(profile)
        if expert_parallel is not None:
            profile = profile.at_expert_parallel(expert_parallel)
        if layout is not None and not isinstance(layout, str):
            raise TypeError(f"layout: {layout!r}. Give text, such as 'tp4' or 'tp2.pp2'")
        check_sync(sync)
        if type(max_len) is int and max_len > MOST_TOKENS:
            raise ValueError(f"max_len must be {MOST_TOKENS} or less, not {max_len}")
        workload = Workload(gpus, max_len, max_len)
        wanted = execution if slowdown is not None or shapes is not None else None
        options = _make_options(packing, seed, prove, exact, wanted, slowdown, gpus, shapes)
        if trainer is not None:
            find_backend(trainer).check_without_data()
        profile, kind = apply_backend(profile, gpus, execution, micro_step_multiple, trainer)
        if kind == "uniform":
            raise OptionError(
                "{0} uniform is one scheme, which a proposal for a data set chooses. Plan from "
                "make_proposal(…, execution='uniform')",
                "execution",
            )
        if layout is not None:
            profile = _keep_layout(profile, layout)
        if not workload.models(profile):
            of = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
            raise Infeasible(f"no scheme of {profile.name} fits {of}; add GPUs")
        if sync == "derived":
            sync = (
                None
                if profile.lockstep
                else choose_sync(profile, gpus, collectives=uses_collectives(trainer))
            )
        elif sync is not None and profile.lockstep:
            raise OptionError(
                "profile {profile} is of ZeRO-3, whose gathers are part of its latency. Leave {0} "
                "out",
                "sync",
                profile=profile.name,
            )
        problem = PlanningProblem(
            profile=profile,
            workload=workload,
            sync=sync,
            execution=kind,
            micro_step_multiple=micro_step_multiple,
        )
        return cls(problem, options)

    @classmethod
    def from_proposal(
        cls,
        proposal: Proposal | Path | str,
        *,
        execution: ExecutionKind | None = None,
        packing: str = PACKINGS[0],
        seed: int = 0,
        prove: bool = True,
        exact: bool = False,
        slowdown: Sequence[float | None] | None = None,
        shapes: Sequence[int] | None = None,
    ) -> Planner:
        """Plan from a proposal or its file.

        ``execution``: ``static`` plans a proposal for ``regroup`` without it. The other options and
        errors are those of ``from_profile``.
        """
        if isinstance(proposal, str | Path):
            proposal = Proposal.load(Path(proposal))
        check_kind("proposal", proposal, Proposal, "a proposal or its file")
        gpus = proposal.workload.gpus
        options = _make_options(packing, seed, prove, exact, execution, slowdown, gpus, shapes)
        return cls(proposal.problem, options)

    def __repr__(self) -> str:
        workload, kind = self._problem.workload, self._problem.execution
        return (
            f"Planner({self._problem.profile.name!r}, gpus={workload.gpus}, "
            f"max_len={workload.max_len}, execution={kind!r})"
        )

    @property
    def gpus(self) -> int:
        """Return the GPUs that plans are for."""
        return self._problem.workload.gpus

    @property
    def resident_bytes(self) -> float:
        """Return the bytes of model states on a GPU at tp = pp = 1.

        Parameters, gradients and its part of the optimizer states, as the profile counts them.
        """
        memory, workload = self._problem.profile.memory, self._problem.workload
        held = memory.count_fixed_bytes(Scheme(), workload.gpus, workload.max_len)
        return held - memory.context_bytes

    def plan(
        self,
        lengths: Iterable[int] | npt.NDArray[np.integer],
        ids: Sequence[int] | npt.NDArray[np.integer] | None = None,
        loss_tokens: int | None = None,
        step: int | None = None,
        *,
        loads: Sequence[Phase] = (),
    ) -> Plan:
        """Plan one step of sequences of these ``lengths`` (tokens).

        ``ids``: their numbers in the data set, by default their places; one that is drawn twice
        counts twice. ``loss_tokens``: labels in
        the loss, by default every token but the first of each sequence; ``step``: by default one
        more than the last; ``loads``: work of the sequences before the language model, by phase,
        which the ranks of a pipeline share evenly; groups then stay within a step, and schemes
        have no stages. ``ValueError`` for lengths that are no whole numbers above 0 or exceed
        ``max_len``, for ids, a step or loss tokens that are no whole numbers from 0 on, and for
        more loss tokens than tokens; ``Infeasible`` if no scheme holds a sequence.
        """
        number = self._step if step is None else step
        batch = self._batch(number, lengths, ids, loss_tokens)
        if loads:
            batch = replace(batch, loads=list_loads(loads, len(batch.lengths)))
        plan = self._planner.plan(batch)
        self._step = batch.step + 1
        return plan

    def prove(self, plan: Plan) -> Plan:
        """Return a plan with the closest bound that can be proven; see ``StepPlanner.prove``."""
        check_kind("plan", plan, Plan, "one of this planner")
        return self._planner.prove(plan)

    def observe(self, plan: Plan, measured_ms: Sequence[float | None]) -> tuple[float | None, ...]:
        """Take the computing times of a step's ranks; plan around slow ones from now on.

        ``plan``: of that step; ``measured_ms``: of each rank, without waits, 0 for one without
        work, None for a lost one, which then gets none. Factors start from ``slowdown``, if given.
        Returns the factors (``SlowRanks``), which all ranks have to agree upon: give each the times
        of all. Groups then stay within a step.
        ``ValueError`` as ``SlowRanks.observe``, ``OptionError`` for plans in lockstep,
        ``Infeasible`` if no scheme fits the ranks that are left.
        """
        check_kind("plan", plan, Plan, "the plan of the step")
        if plan.world_size != self.gpus:
            raise ValueError(f"plan: of {plan.world_size} ranks. Give one of {self.gpus}")
        if self._slow_ranks is None:
            slow = self._options.slowdown
            replace(self._options, slowdown=slow or ((0, 2.0),)).resolve_execution(self._problem)
            self._slow_ranks = SlowRanks(self.gpus, slow)
        before = self._slow_ranks.slowdown
        # The plan may be older than the present factors, if steps are planned ahead.
        usual_ms = list_usual_ms(plan)
        rank_ms = [ms * (factor or 1.0) for ms, factor in zip(usual_ms, before, strict=True)]
        factors = self._slow_ranks.observe(rank_ms, measured_ms)
        if factors != before:
            options = replace(self._options, slowdown=Slowdown(factors).slow)
            self._planner = StepPlanner(self._problem, options)
        return factors

    def _batch(
        self,
        step: int,
        lengths: Iterable[int] | npt.NDArray[np.integer],
        ids: Sequence[int] | npt.NDArray[np.integer] | None,
        loss_tokens: int | None,
    ) -> Batch:
        limit = self._problem.workload.max_len
        try:
            number = read_integer("step", step)
            whole = whole_lengths(lengths)
            if ids is not None:
                check_list("ids", ids, "whole numbers")
            numbers = range(len(whole)) if ids is None else [read_integer("an id", i) for i in ids]
            counted = None if loss_tokens is None else read_integer("loss_tokens", loss_tokens)
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


def _make_options(
    packing: str,
    seed: int,
    prove: bool,
    exact: bool,
    execution: ExecutionKind | None = None,
    slowdown: Sequence[float | None] | None = None,
    gpus: int = 0,
    shapes: Sequence[int] | None = None,
) -> PlanningOptions:
    for name, switch in (("prove", prove), ("exact", exact)):
        if type(switch) is not bool:
            raise TypeError(f"{name}: {switch!r}. Give True or False")
    if isinstance(shapes, int):
        number = shapes
        raise TypeError(
            f"shapes: {number}. Give sizes, as choose_plan_shapes(plans, {number}) does"
        )
    if shapes is not None and not isinstance(shapes, Iterable):
        raise TypeError(f"shapes: {shapes!r}. Give tokens of each, or None")
    sizes = () if shapes is None else tuple(shapes)
    if shapes is not None and not sizes:
        raise ValueError("shapes: none. Give tokens of each, or None")
    return PlanningOptions(
        seed=seed,
        packing=packing,
        execution=execution,
        prove=prove,
        exact=exact,
        slowdown=Slowdown.from_value(slowdown, gpus).slow,
        shapes=sizes,
    )


def _keep_layout(profile: Profile, layout: str) -> Profile:
    degrees = parse_layout(layout)
    layouts = sorted({(entry.scheme.tp, entry.scheme.pp) for entry in profile.schemes})
    if degrees not in layouts:
        known = ", ".join(layout_text(known) for known in layouts)
        raise ValueError(f"profile {profile.name} has no layout {layout}; it has {known}")
    return profile.restrict(layout=degrees)
