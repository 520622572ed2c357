"""A rank's part of a measured micro-batch: the bench, the plan, and the stage's calls.

As many pipelines as there is room for run the same micro-batch at the same time, because in
training they do: links between ranks, and the cores of a CPU, are shared. Ranks left over wait.

A few layers stand for all: their time is multiplied. Embedding, head and loss are measured once by
themselves, each on the stage that has it, with the transfers between a pipeline's stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from seqplan.plans.groups import Group, process_groups
from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline, Provenance
from seqplan.plans.scheme import Scheme
from seqplan.plans.views.rank_view import rank_view
from seqplan.profiler.measure.saved_memory import Allocator
from seqplan.profiler.measure.stage import MeasuredStage, Neighbours, StageWork
from seqplan.runtime.experts.blocks import ExpertBlocks
from seqplan.runtime.models.llama import ModelConfig
from seqplan.runtime.sequence_parallel.context import attention_context
from seqplan.runtime.sequence_parallel.kernels import Kernel
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.tensor_parallel.groups import TensorGroups


@dataclass(frozen=True, slots=True)
class Bench:
    """The measured ``layers`` of a model and their groups, None on a single rank.

    ``tensor_groups``: with those of all schemes' tp degrees; ``allocator``: read for the peak of
    every micro-batch, None if only what autograd keeps is counted; ``out_of_memory``: called
    when this rank is; ``processor_time``: see ``Task``; ``kernel``: of attention, the first that
    supports it if None; ``blocks``: of experts, None if each rank has all.
    """

    config: ModelConfig
    layers: int
    device: torch.device
    dtype: torch.dtype
    rank: int = 0
    world_size: int = 1
    attention_group: dist.ProcessGroup | None = None
    control_group: dist.ProcessGroup | None = None
    tensor_groups: TensorGroups | None = None
    allocator: Allocator | None = None
    out_of_memory: Callable[[], None] = lambda: None
    processor_time: bool = False
    kernel: Kernel | None = None
    blocks: ExpertBlocks | None = None


class RankWork:
    """Gives this rank's part of micro-batches; stages are built when first needed, one a tp."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._peers = Peers(bench.attention_group)
        self._stages: dict[int, MeasuredStage] = {}

    def of(self, scheme: Scheme, lengths: Sequence[int]) -> StageWork | None:
        """Return this rank's part of a micro-batch of sequences of ``lengths`` tokens.

        None on a rank that the scheme leaves over.
        """
        bench = self._bench
        plan = make_full_plan(scheme, lengths, bench.world_size)
        if bench.rank in plan.idle_ranks:
            return None
        (pipeline,) = rank_view(plan, bench.rank).pipelines
        neighbors = Neighbours(pipeline.pp_previous, pipeline.pp_next)
        context = attention_context(
            pipeline,
            pipeline.micro_batches[0],
            self._peers,
            device=bench.device,
            kernel=bench.kernel,
        )
        return self._stage(pipeline.tp_group).work(context, neighbors, self._peers)

    def forget_gradients(self) -> None:
        """Free the gradients of every stage."""
        for stage in self._stages.values():
            stage.forget_gradients()

    def _stage(self, tp_group: Group) -> MeasuredStage:
        tp = len(tp_group)
        if tp not in self._stages:
            bench = self._bench
            group = None if bench.tensor_groups is None else bench.tensor_groups.of(tp_group)
            self._stages[tp] = MeasuredStage(
                bench.config, bench.layers, group, bench.device, bench.dtype, bench.blocks
            )
        return self._stages[tp]


def make_full_plan(scheme: Scheme, lengths: Sequence[int], world_size: int) -> Plan:
    """Plan as many pipelines as fit, each with one micro-batch of these sequences."""
    replicas = world_size // scheme.gpus
    pipelines = []
    for replica in range(replicas):
        first = replica * len(lengths)
        batch = MicroBatch(
            tuple(range(first, first + len(lengths))),
            sum(lengths),
            scheme.pad_micro_batch(lengths),
            1.0,
        )
        ranks = range(replica * scheme.gpus, (replica + 1) * scheme.gpus)
        pipelines.append(PlannedPipeline(scheme, tuple(ranks), (batch,), float(scheme.pp)))
    tokens = replicas * sum(lengths)
    return Plan(
        step=0,
        provenance=Provenance("profile", 0, "none", None),
        world_size=world_size,
        ids=tuple(range(replicas * len(lengths))),
        lengths=tuple(lengths) * replicas,
        tokens=tokens,
        loss_tokens=tokens - replicas * len(lengths),
        pipelines=tuple(pipelines),
        idle_ranks=tuple(range(replicas * scheme.gpus, world_size)),
        groups=process_groups(pipelines),
        predicted_ms=float(scheme.pp),
        lower_bound_ms=float(scheme.pp),
        gap=0.0,
        selection=(),
    )
