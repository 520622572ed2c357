"""The parts of every baseline: a setting to train in, and a way to run a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from seqplan.costs.profile import Profile
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.experts.coupled_pipelines import price_micro_batch
from seqplan.planner.lockstep.assemble import assemble_micro_steps
from seqplan.planner.lockstep.plan_micro_steps import plan_micro_steps
from seqplan.planner.placement.assembly import assemble, plan_pipeline, ranks_of_stages
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.problem import PlanningProblem
from seqplan.planner.simulation.iteration import Execution
from seqplan.planner.step.selection import select
from seqplan.planner.sync.times import NO_SYNC, SyncTimes
from seqplan.planner.workload import Workload
from seqplan.plans.experts import holds_whole_blocks
from seqplan.plans.plan import PlannedPipeline, Provenance
from seqplan.plans.scheme import Scheme, Strategy
from seqplan.plans.version import VERSION


@dataclass(frozen=True)
class Setting:
    """Where systems are compared: profile, cluster, batches; ``longest``: of the data set (tokens).

    Systems that are set up by search see these very batches, which is in their favor. Our
    selection weighs the ``sync``. ``lockstep``: all ranks run their k-th micro-batches
    together, in micro-steps, ours in multiples of ``micro_step_multiple``; so they do under ZeRO-3.
    ``static_experts``: of a model with experts on several ranks, the one degree, mode and scheme
    that are fastest throughout.
    """

    profile: Profile
    workload: Workload
    batches: tuple[Batch, ...]
    longest: int
    sync: SyncTimes = NO_SYNC
    lockstep: bool = False
    micro_step_multiple: int = 1
    static_experts: PlanningProblem | None = None

    @property
    def expert_parallel(self) -> int:
        """Return the ranks that hold all experts together."""
        return self.profile.expert_parallel

    @property
    def in_lockstep(self) -> bool:
        """Whether ranks run in lockstep: by request, or under ZeRO-3."""
        return self.lockstep or self.profile.lockstep

    @property
    def forward_fraction(self) -> float:
        """Forward's share of a micro-batch's time, in the one recomputation mode."""
        return self.profile.modes[0].forward_fraction

    @cached_property
    def models(self) -> dict[Scheme, SchemeModel]:
        """Return the models of the schemes that fit the cluster."""
        return self.workload.models(self.profile)

    def run_balanced(self, batch: Batch, strategies: Sequence[Strategy]) -> Execution:
        """Run our dispatch and packing on the best of given strategies."""
        selected = select(
            batch,
            strategies,
            self.models,
            self.workload.gpus,
            tailor=False,
            sync=self.sync,
        )
        planner = Provenance(VERSION, 0, self.profile.digest, None)
        fraction = self.profile.forward_fraction
        return Execution.from_plan(assemble(batch, selected, planner, self.workload.gpus, fraction))

    def pipelines(
        self,
        batch: Batch,
        work: Sequence[tuple[Scheme, Sequence[Sequence[int]]]],
        micro_step: int | None = None,
    ) -> tuple[PlannedPipeline, ...]:
        """Make pipelines on consecutive ranks from their micro-batches (positions in the batch).

        In a micro-step, of each stage: the ranks of a stage are the same in all micro-steps. With
        experts on several ranks, micro-batches state what their block shares.
        """
        pipelines = []
        first = 0
        for scheme, micro_batches in work:
            if micro_step is None:
                ranks = tuple(range(first, first + scheme.gpus))
                first += scheme.gpus
            else:
                ranks = ranks_of_stages(scheme, first, self.workload.gpus // scheme.pp)
                first += scheme.stage_gpus
            pipeline_class = PipelineClass.from_model(self.models[scheme], 1)
            fraction = self.profile.forward_fraction
            pipeline = plan_pipeline(
                scheme,
                pipeline_class,
                ranks,
                micro_batches,
                batch,
                forward_fraction=fraction,
                micro_step=micro_step,
            )
            pipelines.append(self._share(pipeline, batch))
        return tuple(pipelines)

    def _share(self, pipeline: PlannedPipeline, batch: Batch) -> PlannedPipeline:
        """State what micro-batches share with others of their block of experts."""
        if holds_whole_blocks(pipeline.scheme, pipeline.ranks, self.expert_parallel):
            return pipeline
        model = self.models[pipeline.scheme]
        shared = [
            price_micro_batch(
                micro,
                model,
                [batch.lengths[i] for i in micro.sequences],
                micro.recompute,
                whole=False,
            )
            for micro in pipeline.micro_batches
        ]
        return replace(pipeline, micro_batches=tuple(shared))

    def replicas(
        self, batch: Batch, scheme: Scheme, by_rank: Sequence[Sequence[Sequence[int]]]
    ) -> Execution:
        """Run equal replicas with their micro-batches (positions in the batch), in list order.

        In lockstep the k-th of all replicas are micro-step k, and wait for each other.
        """
        if not self.in_lockstep:
            return Execution((self.pipelines(batch, [(scheme, micros) for micros in by_rank]),))
        micro_steps: list[PlannedPipeline] = []
        for number in range(max(map(len, by_rank))):
            work = [(scheme, micros[number : number + 1]) for micros in by_rank]
            micro_steps += self.pipelines(batch, work, number)
        return Execution((tuple(micro_steps),))

    def even_micro_steps(self, batch: Batch, strategy: Strategy) -> Execution:
        """Run our micro-steps of one scheme; ``ValueError`` when a sequence fits no group."""
        model = self.models[strategy.counts[0][0]]
        gpus = self.workload.gpus
        micro_steps = plan_micro_steps(batch, [model], gpus, self.micro_step_multiple)
        if micro_steps is None:
            raise ValueError(
                f"a sequence of {batch.longest} tokens fits no group of {strategy}"
                ". Use larger groups or a shorter context"
            )
        planner = Provenance(VERSION, 0, self.profile.digest, None)
        fraction = self.profile.forward_fraction
        return Execution.from_plan(
            assemble_micro_steps(batch, micro_steps, planner, gpus, forward_fraction=fraction)
        )


@dataclass(frozen=True)
class ComparedSystem:
    """A named way to train: ``step`` plans its execution of a batch.

    ``balanced``: whether dispatch and packing are ours on the system's strategy; ``static``: the
    homogeneous strategy that it keeps throughout, if it does.
    """

    key: str
    name: str
    description: str
    balanced: bool
    step: Callable[[Batch], Execution]
    static: Strategy | None = None


@dataclass(frozen=True)
class Skipped:
    """A system that cannot be compared here, and why."""

    key: str
    name: str
    why: str
