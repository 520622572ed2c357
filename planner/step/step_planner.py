"""The flow of one step: batch → selection (dispatch, packing) → plan, or regrouping groups."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import certify
from seqplan.planner.bounds.gpu_time import gpu_time_bound_ms
from seqplan.planner.bounds.relaxation import load_solver
from seqplan.planner.errors import Infeasible
from seqplan.planner.exact.close_gap import (
    EXACT_GAP,
    close_gap,
    closer_bound_ms,
    load_exact_solver,
)
from seqplan.planner.exact.regrouping import close_regrouping_gap
from seqplan.planner.lockstep.assemble import assemble_rounds
from seqplan.planner.lockstep.best_layout import best_rounds, of_layouts
from seqplan.planner.lockstep.proof import prove_rounds
from seqplan.planner.placement.fleet import Fleet
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.step.assemble import PACKINGS, assemble, with_bound
from seqplan.planner.step.regrouping_plan import (
    assemble_regrouping,
    find_regroup_layouts,
    with_regrouping,
)
from seqplan.planner.step.selection import Selected, select
from seqplan.planner.strategies.constructive import LayoutSchemes
from seqplan.planner.strategies.regrouping import RegroupLayout
from seqplan.planner.sync.times import layouts_of
from seqplan.plans.plan import Plan, Provenance
from seqplan.plans.scheme import Scheme, Strategy
from seqplan.plans.version import VERSION


class StepPlanner:
    """Plans steps from one proposal; the same batch always gives the same plan.

    If the proposal states a sync, strategies are chosen by their time with it; a plan's
    times never hold it, as they recompute from the profile.
    ``prove``: whether plans have the close bound; without it they have one that takes microseconds,
    for callers that cannot wait, and ``StepPlanner.prove`` makes it close later.
    ``prove_rounds``: spend seconds on a closer bound for rounds (``rounds.proof``).
    ``exact``: if the proven gap is above 1 %, a step in which at most 60 sequences matter is solved
    by constraint programming (``planner.exact``), for seconds; its plan is then faster, or its
    bound higher, or both stay. If groups regroup, that bound is over groups on aligned ranks.
    ``packing``: one of ``assemble.PACKINGS``; rounds have one micro-batch a group and ignore it.
    ``regrouping``: whether groups may regroup within a step, if that is faster, in a layout
    without stages; rounds have separate groups in any case.
    Making one takes a moment, as all that planning imports is imported then.
    """

    def __init__(
        self,
        proposal: Proposal,
        seed: int = 0,
        packing: str = PACKINGS[0],
        regrouping: bool = True,
        *,
        prove: bool = True,
        prove_rounds: bool = False,
        exact: bool = False,
    ) -> None:
        if packing not in PACKINGS:
            raise ValueError(f"unknown packing {packing!r}; choose one of {', '.join(PACKINGS)}")
        if exact and not prove:
            raise ValueError("exact answers start from the close bound; leave prove=False out")
        if exact and proposal.in_lockstep:
            why = "the proposal is in lockstep"
            if proposal.profile.lockstep:
                why = f"{proposal.profile.name} runs in rounds (ZeRO-3)"
            raise ValueError(f"exact answers are for pipelines; {why}")
        self.proposal = proposal
        self.seed = seed
        self.packing = packing
        self.regrouping = regrouping
        self.with_proof = prove
        self.prove_rounds = prove_rounds
        self.exact = exact
        if prove and not proposal.in_lockstep:  # which solve nothing
            load_solver()
        if exact:
            load_exact_solver()

    @cached_property
    def models(self) -> dict[Scheme, SchemeModel]:
        """Return the models of the schemes that fit the proposal's GPUs."""
        return self.proposal.cluster.models(self.proposal.profile)

    @cached_property
    def _layouts(self) -> list[LayoutSchemes]:
        return LayoutSchemes.list_from_models(self.models)

    @cached_property
    def _find_regroup_layouts(self) -> list[RegroupLayout]:
        return find_regroup_layouts(self.proposal, self.models) if self.regrouping else []

    @cached_property
    def _planner(self) -> Provenance:
        return Provenance(VERSION, self.seed, self.proposal.profile.digest, self.proposal.digest)

    def plan(self, batch: Batch) -> Plan:
        """Make the step's plan; ``Infeasible`` when no scheme holds a sequence."""
        proposal = self.proposal
        if proposal.in_lockstep:
            return self._plan_rounds(batch)
        candidates = [candidate.strategy for candidate in proposal.candidates]
        gpus = proposal.cluster.gpus
        selected = select(
            batch,
            candidates,
            self.models,
            gpus,
            sync=proposal.sync,
            prove=self.with_proof,
            layouts=self._layouts,
        )
        static = self._assemble(batch, selected)
        plan = with_regrouping(
            static, batch, self._find_regroup_layouts, self.models, self.seed, self.packing
        )
        if not self.exact or plan.gap <= EXACT_GAP:
            return plan
        if plan.regroups:
            return self._solve_regrouping(plan, static, batch)
        # A plan may be packed better than its placement was: then only the bound can gain.
        placement, bound_ms = close_gap(selected.placement, batch, selected.lower_bound_ms)
        closer = replace(selected, placement=placement, lower_bound_ms=bound_ms)
        solved = self._assemble(batch, closer)
        return solved if solved.predicted_ms <= plan.predicted_ms else with_bound(plan, bound_ms)

    def _solve_regrouping(self, plan: Plan, static: Plan, batch: Batch) -> Plan:
        """Solve a step whose groups regroup: a faster plan, or one with a closer bound."""
        (layout,) = (
            entry
            for entry in self._find_regroup_layouts
            if entry.layout in layouts_of(scheme for scheme, _ in plan.strategy.counts)
        )
        found, bound_ms = close_regrouping_gap(
            layout, batch, plan.world_size, plan.predicted_ms, plan.lower_bound_ms
        )
        if found is not None:
            faster = assemble_regrouping(found, static, batch, layout, self.packing)
            plan = faster if faster.predicted_ms < plan.predicted_ms else plan
        return with_bound(plan, bound_ms)

    def _assemble(self, batch: Batch, selected: Selected) -> Plan:
        """Make the plan of fixed groups."""
        profile = self.proposal.profile
        return assemble(
            batch,
            selected,
            self._planner,
            self.proposal.cluster.gpus,
            forward_fraction=profile.forward_fraction,
            packing=self.packing,
            layout_bound_ms=self._layout_bound_ms(selected.placement.fleet.strategy, batch),
        )

    def _layout_bound_ms(self, strategy: Strategy, batch: Batch) -> float:
        """Bound all plans of a strategy's layouts, whatever their groups (ms)."""
        wanted = layouts_of(scheme for scheme, _ in strategy.counts)
        classes = [c for layout in self._layouts if layout.layout in wanted for c in layout.classes]
        return gpu_time_bound_ms(classes, batch, self.proposal.cluster.gpus)

    def prove(self, plan: Plan) -> Plan:
        """Return a plan of this planner with a closer bound, if one can be proven.

        What runs stays as it is; bound, gap and digest change. With ``exact`` steps of few
        sequences are solved for it, as in planning. Without it groups that regroup have the
        closest bound there is of them already, and rounds in any case. ``ValueError`` for a plan
        of another proposal, profile, cluster or sync, whose groups may hold more or less.
        """
        if plan.provenance.profile != self.proposal.profile.digest:
            raise ValueError(
                f"step {plan.step}: planned with profile {plan.provenance.profile}, not this "
                "planner's"
            )
        if plan.provenance.proposal != self.proposal.digest:
            raise ValueError(
                f"step {plan.step}: planned from another proposal, or for other GPUs, lengths or "
                "options than this planner's; prove it with an equal planner"
            )
        if self.proposal.in_lockstep or (plan.regroups and not self.exact):
            return plan
        batch = Batch(plan.step, plan.ids, plan.lengths, plan.loss_tokens)
        if plan.regroups:
            wanted = layouts_of(scheme for scheme, _ in plan.strategy.counts)
            for layout in self._find_regroup_layouts:
                if layout.layout in wanted:
                    _, bound_ms = close_regrouping_gap(
                        layout, batch, plan.world_size, plan.predicted_ms, plan.lower_bound_ms
                    )
                    plan = with_bound(plan, bound_ms)
            return plan
        fleet = Fleet.from_strategy(plan.strategy, self.models)
        bound_ms = certify(fleet, batch, plan.predicted_ms)
        if self.exact:
            bound_ms = closer_bound_ms(fleet, batch, plan.predicted_ms, bound_ms)
        return with_bound(plan, bound_ms)

    @cached_property
    def _round_layouts(self) -> list[list[SchemeModel]]:
        """Return the schemes of each layout that rounds may have: of the candidates, or all."""
        schemes = [s for c in self.proposal.candidates for s, _ in c.strategy.counts]
        chosen = layouts_of(schemes or self.models)
        return [of for layout, of in of_layouts(self.models).items() if layout in chosen]

    def _plan_rounds(self, batch: Batch) -> Plan:
        """Plan rounds of groups for the step; of candidates only the layout counts."""
        proposal = self.proposal
        gpus = proposal.cluster.gpus
        try:
            best = best_rounds(
                batch, self._round_layouts, gpus, proposal.sync, proposal.micro_step_multiple
            )
        except ValueError as error:
            raise Infeasible(f"step {batch.step}: {error}") from None
        if best is None:
            limit = max(model.max_sequence for of in self._round_layouts for model in of)
            sample = batch.ids[batch.lengths.index(batch.longest)]
            raise Infeasible(
                f"step {batch.step}: sequence {sample} has {batch.longest} tokens, but no group of "
                f"{gpus} GPUs holds more than {limit}; truncate it or use more GPUs"
            )
        rounds = prove_rounds(best.rounds, batch) if self.prove_rounds else best.rounds
        return assemble_rounds(
            batch,
            rounds,
            self._planner,
            gpus,
            forward_fraction=proposal.profile.forward_fraction,
            sync_ms=None if proposal.sync is None else round(best.sync_ms, 3),
        )
