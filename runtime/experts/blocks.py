"""A rank's block under expert parallelism, and the split of a model's experts over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqplan.plans.experts import expert_group, expert_replicas
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.errors import PlanError, communicating
from seqplan.runtime.sequence_parallel.peers import Parts, Peers
from seqplan.runtime.tensor_parallel.process_groups import group_maker_for


@dataclass(frozen=True, slots=True)
class ExpertBlocks:
    """Expert parallelism of a job as one rank has it: ``degree`` ranks hold all experts together.

    ``index``: of the experts here, and the rank's place in its block; ``ranks``: of the block;
    ``replicas``: group of the ranks with the same experts; ``peers``: for exchanges of tokens.
    """

    degree: int
    index: int
    ranks: tuple[int, ...]
    replicas: dist.ProcessGroup
    peers: Peers

    @classmethod
    def create(cls, degree: int, groups: Communicators) -> ExpertBlocks | None:
        """Make the groups of all blocks; None if ``degree`` is 1. All ranks call it together.

        ``ValueError`` for a degree that does not divide the ranks.
        """
        world_size, rank = dist.get_world_size(groups.states), dist.get_rank(groups.states)
        if degree < 1 or world_size % degree:
            raise ValueError(
                f"expert_parallel: {degree} does not divide the job's {world_size} ranks. Give a "
                "divisor of the number of ranks"
            )
        if degree == 1:
            return None
        blocks = [expert_replicas(index, degree, world_size) for index in range(degree)]
        made = group_maker_for(groups.states, groups.timeout_s).make(blocks)
        replicas = made[expert_replicas(rank, degree, world_size)]
        assert replicas is not None
        return cls(
            degree=degree,
            index=rank % degree,
            ranks=expert_group(rank, degree),
            replicas=replicas,
            peers=Peers(groups.attention, "exchanging tokens of experts"),
        )

    def gather(self, part: Tensor) -> Tensor:
        """Join the parts of the block's ranks along the first axis; collective."""
        whole = part.new_empty(self.degree * part.shape[0], *part.shape[1:])
        parts = whole.chunk(self.degree)
        parts[self.index].copy_(part)
        others = [place for place in range(self.degree) if place != self.index]
        sent = part.contiguous()
        self.peers.transfer(
            [(sent, self.ranks[place]) for place in others],
            [(parts[place], self.ranks[place]) for place in others],
        ).wait()
        return whole

    @property
    def part(self) -> tuple[int, int]:
        """The part of each expert parameter that is here, and the number of parts."""
        return self.index, self.degree

    def count_local(self, experts: int) -> int:
        """Return how many of a layer's experts are here. ``ValueError`` if they do not divide."""
        if experts % self.degree:
            raise ValueError(
                f"expert_parallel: {self.degree} does not divide the model's {experts} experts. "
                "Give a divisor of both the experts and the ranks"
            )
        return experts // self.degree

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send each rank of the block its rows, and return those received, in rank order.

        ``rows``: (Σ sent, …), contiguous; ``sent``, ``received``: rows of each rank.
        """
        width = prod(rows.shape[1:])
        out = rows.new_empty(sum(received), *rows.shape[1:])
        self.peers.exchange(
            Parts(rows.reshape(-1), [count * width for count in sent]),
            Parts(out.view(-1), [count * width for count in received]),
            self.ranks,
            self.index,
        )
        return out


def check_expert_parallel(view: RankView, blocks: ExpertBlocks | None) -> None:
    """Reject a step that is planned for another degree than the job's. ``PlanError``."""
    degree = 1 if blocks is None else blocks.degree
    if view.expert_parallel != degree:
        raise PlanError(
            f"step {view.step}: the plan has expert_parallel {view.expert_parallel}, the job "
            f"{degree}. Give the job the degree of its plans"
        )


@dataclass(frozen=True, slots=True)
class SplitExperts:
    """A model whose experts are split: ``names`` of the parameters of which a rank has a part."""

    blocks: ExpertBlocks
    names: frozenset[str]


def split_experts(
    modules: Mapping[str, nn.Module],
    blocks: ExpertBlocks,
    group: dist.ProcessGroup,
    device: torch.device,
) -> SplitExperts:
    """Keep this rank's part of every parameter of modules, by name, along its first dimension.

    Collective over ``group``, all ranks of the job. The first rank's values are taken, so that the
    others' may be on the meta device; parts are on ``device``. ``ValueError`` if experts do not
    divide.
    """
    names = []
    for prefix, module in modules.items():
        for key, value in list(module.named_parameters(recurse=False)):
            local = blocks.count_local(value.shape[0])
            part = _take_part(value.detach(), local, blocks, group, device)
            setattr(module, key, nn.Parameter(part, value.requires_grad))
            names.append(f"{prefix}.{key}" if prefix else key)
    return SplitExperts(blocks, frozenset(names))


def _take_part(
    value: Tensor,
    local: int,
    blocks: ExpertBlocks,
    group: dist.ProcessGroup,
    device: torch.device,
) -> Tensor:
    """Return this rank's part of the first rank's value."""
    doing = "distributing the first rank's experts"
    rank = dist.get_rank(group)
    part = torch.empty((local, *value.shape[1:]), dtype=value.dtype, device=device)
    peers = Peers(group, doing)
    if rank == 0:
        part.copy_(value[:local])
        for index in range(1, blocks.degree):
            sent = value[index * local : (index + 1) * local].to(device).contiguous()
            peers.transfer([(sent, dist.get_global_rank(group, index))], []).wait()
    elif rank < blocks.degree:
        peers.transfer([], [(part, dist.get_global_rank(group, 0))]).wait()
    with communicating(doing):
        dist.broadcast(part, dist.get_global_rank(blocks.replicas, 0), group=blocks.replicas)
    return part
