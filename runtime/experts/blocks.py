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

_DISTRIBUTING = "distributing the first ranks' experts"


@dataclass(frozen=True, slots=True)
class ExpertBlocks:
    """Expert parallelism of a job as one rank has it: ``degree`` ranks hold all experts together.

    ``index``: of the experts here, and the rank's place in its block; ``ranks``: of the block;
    ``replicas``: group of the ranks with the same experts; ``peers``: for exchanges of tokens;
    ``row_limit``: of rows that a rank receives in a layer, None without.
    """

    degree: int
    index: int
    ranks: tuple[int, ...]
    replicas: dist.ProcessGroup
    peers: Peers
    row_limit: int | None = None

    @classmethod
    def create(
        cls, degree: int, groups: Communicators, row_limit: int | None = None
    ) -> ExpertBlocks | None:
        """Make the groups of all blocks; None if ``degree`` is 1. All ranks call it together.

        ``ValueError`` for a degree that does not divide the ranks, or a limit below 1.
        """
        world_size, rank = dist.get_world_size(groups.states), dist.get_rank(groups.states)
        check_degree(degree, world_size)
        if row_limit is not None and row_limit < 1:
            raise ValueError(f"expert_row_limit: {row_limit}. Give a number of rows above 0")
        if degree == 1:
            return None
        blocks = [expert_replicas(index, degree, world_size) for index in range(degree)]
        by_ranks = group_maker_for(groups.states, groups.timeout_s).make(blocks)
        replicas = by_ranks[expert_replicas(rank, degree, world_size)]
        assert replicas is not None
        return cls(
            degree=degree,
            index=rank % degree,
            ranks=expert_group(rank, degree),
            replicas=replicas,
            peers=Peers(groups.attention, "exchanging tokens of experts"),
            row_limit=row_limit,
        )

    def close(self) -> None:
        """Destroy the group of ``replicas`` after its last use; all ranks call it."""
        dist.destroy_process_group(self.replicas)

    def gather(self, part: Tensor) -> Tensor:
        """Join small parts of the block's ranks along the first axis; collective."""
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

    def gather_on_first(self, part: Tensor) -> Tensor | None:
        """Join the parts of the first block on the CPU of its first rank; None on other ranks.

        One part at a time is on the device. All ranks of the first block call it.
        """
        if self.ranks[0]:
            return None
        if self.index:
            self.peers.transfer([(part.contiguous(), self.ranks[0])], []).wait()
            return None
        rows = part.shape[0]
        whole = torch.empty(self.degree * rows, *part.shape[1:], dtype=part.dtype)
        whole[:rows] = part
        received = torch.empty_like(part, memory_format=torch.contiguous_format)
        for place in range(1, self.degree):
            self.peers.transfer([], [(received, self.ranks[place])]).wait()
            whole[place * rows : (place + 1) * rows] = received
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

    def check_received(self, counts: Tensor) -> None:
        """Reject rows beyond ``row_limit`` before they are sent; collective if there is one.

        ``counts``: of this rank's rows for each expert. ``PlanError`` on every rank of the block.
        """
        if self.row_limit is None:
            return
        sent = counts.view(self.degree, -1).sum(1)
        received = self.gather(sent).view(self.degree, -1).sum(0).tolist()
        most = max(received)
        if most > self.row_limit:
            rank = self.ranks[received.index(most)]
            raise PlanError(
                f"rank {rank} would receive {most} rows of its experts in a layer, more than "
                f"expert_row_limit {self.row_limit}. Raise the limit, or plan fewer tokens a "
                "micro-batch"
            )

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


def check_degree(degree: int, world_size: int) -> None:
    """Reject a degree that does not divide the ranks. ``ValueError``."""
    if degree < 1 or world_size % degree:
        raise ValueError(
            f"expert_parallel: {degree} does not divide the job's {world_size} ranks. "
            "Give a divisor of the number of ranks"
        )


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
    *,
    in_parts: bool = False,
) -> SplitExperts:
    """Keep this rank's part of every parameter of modules, by name, along its first dimension.

    Collective over ``group``, all ranks of the job. The first rank's values are taken, so that the
    others' may be on the meta device; parts are on ``device``. ``in_parts``: modules have the
    rank's part only, which is that of the first rank that has the same. ``ValueError`` if experts
    do not divide.
    """
    names = []
    for prefix, module in modules.items():
        for key, value in list(module.named_parameters(recurse=False)):
            if in_parts:
                # A copy: a part may be a view of its file.
                part = torch.empty(value.shape, dtype=value.dtype, device=device)
                part.copy_(value.detach())
            else:
                local = blocks.count_local(value.shape[0])
                part = _take_part(value.detach(), local, blocks, group, device)
            with communicating(_DISTRIBUTING):
                first = dist.get_global_rank(blocks.replicas, 0)
                dist.broadcast(part, first, group=blocks.replicas)
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
    """Return this rank's part of the first rank's value, in the first block."""
    rank = dist.get_rank(group)
    part = torch.empty((local, *value.shape[1:]), dtype=value.dtype, device=device)
    peers = Peers(group, _DISTRIBUTING)
    if rank == 0:
        part.copy_(value[:local])
        for index in range(1, blocks.degree):
            sent = value[index * local : (index + 1) * local].to(device).contiguous()
            peers.transfer([(sent, dist.get_global_rank(group, index))], []).wait()
    elif rank < blocks.degree:
        peers.transfer([], [(part, dist.get_global_rank(group, 0))]).wait()
    return part
