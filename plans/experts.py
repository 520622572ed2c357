"""Expert parallelism in a step: who holds which experts, and which ranks run together.

Rank r holds the experts of index r mod E for the whole job; ranks bE … bE + E − 1 are block b and
exchange tokens in every layer with experts. Pipelines and blocks that share ranks form a
*component*. If a pipeline of a component holds a part of a block, all ranks of the component run
equally many micro-steps of gradient accumulation. A rank without a micro-batch in one runs the
model on no tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from seqplan.plans.plan import MicroBatch, PlannedPipeline
from seqplan.plans.scheme import Scheme

Ranks = tuple[int, ...]


def expert_group(rank: int, expert_parallel: int) -> Ranks:
    """Return the block of ``rank``: the ranks that hold all experts together, ascending."""
    first = rank - rank % expert_parallel
    return tuple(range(first, first + expert_parallel))


def expert_replicas(rank: int, expert_parallel: int, world_size: int) -> Ranks:
    """Return the ranks that hold the same experts as ``rank``, ascending."""
    return tuple(range(rank % expert_parallel, world_size, expert_parallel))


def holds_whole_blocks(scheme: Scheme, ranks: Ranks, expert_parallel: int) -> bool:
    """Return whether each stage of a pipeline consists of whole blocks."""
    if expert_parallel == 1:
        return True
    width = scheme.stage_gpus
    for first in range(0, len(ranks), width):
        stage = set(ranks[first : first + width])
        blocks = {rank // expert_parallel for rank in stage}
        if len(stage) != len(blocks) * expert_parallel:
            return False
    return True


def place_micro_steps(ranks: Sequence[Ranks], counts: Sequence[int]) -> list[int]:
    """Return the first micro-step of each pipeline; its others follow without a gap.

    Each micro-batch goes to the first micro-step in which all ranks of its pipeline are free, in
    the plan's order, so that no two ranks wait for each other. ``ranks``: of each pipeline;
    ``counts``: its micro-batches.
    """
    free: dict[int, int] = {}
    first = []
    for members, count in zip(ranks, counts, strict=True):
        start = max((free.get(member, 0) for member in members), default=0)
        first.append(start)
        if count:
            free.update(dict.fromkeys(members, start + count))
    return first


@dataclass(frozen=True)
class Component:
    """Blocks that pipelines connect, and these pipelines by their place in the plan.

    ``coupled``: some pipeline holds a part of a block, so that all run equally many micro-steps.
    """

    blocks: tuple[int, ...]
    pipelines: tuple[int, ...]
    coupled: bool


def find_components(
    schemes: Sequence[Scheme], ranks: Sequence[Ranks], expert_parallel: int
) -> tuple[Component, ...]:
    """Find the components of the pipelines, by their least block.

    ``schemes``, ``ranks``: of each pipeline. A block without a pipeline is in none.
    """
    root: dict[int, int] = {}

    def find(block: int) -> int:
        while root.setdefault(block, block) != block:
            root[block] = root[root[block]]
            block = root[block]
        return block

    for members in ranks:
        first = find(members[0] // expert_parallel)
        for rank in members:
            other = find(rank // expert_parallel)
            first, other = min(first, other), max(first, other)
            root[other] = first
    blocks: dict[int, list[int]] = {}
    for block in sorted(root):
        blocks.setdefault(find(block), []).append(block)
    pipelines: dict[int, list[int]] = {}
    for index, members in enumerate(ranks):
        pipelines.setdefault(find(members[0] // expert_parallel), []).append(index)
    return tuple(
        Component(
            tuple(blocks[first]),
            tuple(pipelines[first]),
            not all(
                holds_whole_blocks(schemes[index], ranks[index], expert_parallel)
                for index in pipelines[first]
            ),
        )
        for first in sorted(blocks)
    )


class ExpertSteps(NamedTuple):
    """The micro-steps in which a rank exchanges tokens with the other ranks of its block.

    ``micro_steps``: that of each of its micro-batches, in the order of running; ``total``: how many
    it takes part in, with no tokens if it has no micro-batch; ``world``: the largest total.
    """

    micro_steps: tuple[int, ...]
    total: int
    world: int


class ExpertSchedule:
    """Micro-steps of all components of a step with ``expert_parallel`` above 1."""

    def __init__(self, pipelines: Sequence[PlannedPipeline], expert_parallel: int) -> None:
        """Place every micro-batch; pipelines that carry a micro-step are in it."""
        self.expert_parallel = expert_parallel
        self.pipelines = pipelines
        ranks = [pipeline.ranks for pipeline in pipelines]
        counts = [len(pipeline.micro_batches) for pipeline in pipelines]
        self.in_lockstep = any(pipeline.micro_step is not None for pipeline in pipelines)
        components = find_components(
            [pipeline.scheme for pipeline in pipelines], ranks, expert_parallel
        )
        if self.in_lockstep:
            # All ranks of the step run their k-th micro-step together, with experts or without.
            blocks = sorted(block for component in components for block in component.blocks)
            components = (Component(tuple(blocks), tuple(range(len(pipelines))), True),)
        self.components = components
        placed = place_micro_steps(ranks, counts)
        self.first = [
            start if pipeline.micro_step is None else pipeline.micro_step
            for start, pipeline in zip(placed, pipelines, strict=True)
        ]
        lasts = [start + count for start, count in zip(self.first, counts, strict=True)]
        self._totals = [
            max(lasts[index] for index in component.pipelines) for component in self.components
        ]
        self.world = max(lasts, default=0)

    def steps_of(self, rank: int) -> ExpertSteps:
        """Return the micro-steps of one rank."""
        block = rank // self.expert_parallel
        for component, total in zip(self.components, self._totals, strict=True):
            if block not in component.blocks:
                continue
            placed = [
                self.first[index] + number
                for index in component.pipelines
                if rank in self.pipelines[index].ranks
                for number in range(len(self.pipelines[index].micro_batches))
            ]
            if not component.coupled:
                # Its whole block has the same pipelines, and is without work together.
                return ExpertSteps(tuple(range(len(placed))), len(placed), self.world)
            return ExpertSteps(tuple(placed), total, self.world)
        return ExpertSteps((), self.world if self.in_lockstep else 0, self.world)

    def time_micro_steps(self, component: Component, stretch: Sequence[float]) -> list[float]:
        """Compute how long each micro-step of a coupled component takes, ms.

        The slowest block's: the longest local work of its ranks and the mean of what they share.
        ``stretch``: a factor for each pipeline of the plan.
        """
        steps = self._micro_steps(component)
        return [
            max(
                time_blocks(self._shares(steps.get(number, ()), stretch), self.expert_parallel),
                default=0.0,
            )
            for number in range(max(steps, default=-1) + 1)
        ]

    def find_slacks(self, component: Component, stretch: Sequence[float]) -> dict[int, float]:
        """Return by pipeline how much longer any of its micro-batches could take, ms.

        No micro-step of the component would take longer. Pipelines without work are left out.
        """
        slacks: dict[int, float] = {}
        degree = self.expert_parallel
        for running in self._micro_steps(component).values():
            shares = list(self._shares(running, stretch))
            local, shared = _add_blocks(shares, degree)
            lasts = max(slowest + shared[block] / degree for block, slowest in local.items())
            for (index, _), (ranks, local_ms, _) in zip(running, shares, strict=True):
                takes = local_ms + max(shared[rank // degree] for rank in ranks) / degree
                slacks[index] = min(slacks.get(index, lasts), lasts - takes)
        return slacks

    def _micro_steps(self, component: Component) -> dict[int, list[tuple[int, MicroBatch]]]:
        steps: dict[int, list[tuple[int, MicroBatch]]] = {}
        for index in component.pipelines:
            for number, micro in enumerate(self.pipelines[index].micro_batches):
                steps.setdefault(self.first[index] + number, []).append((index, micro))
        return steps

    def _shares(
        self, running: Iterable[tuple[int, MicroBatch]], stretch: Sequence[float]
    ) -> Iterator[tuple[Ranks, float, float]]:
        for index, micro in running:
            factor = stretch[index]
            local = (micro.cost_ms - micro.shared_ms) * factor
            yield self.pipelines[index].ranks, local, micro.shared_ms * factor


def time_blocks(
    running: Iterable[tuple[Ranks, float, float]], expert_parallel: int
) -> Iterator[float]:
    """Compute each block's time in one micro-step, ms, from ranks, local and shared work."""
    local, shared = _add_blocks(running, expert_parallel)
    for block, slowest in local.items():
        yield slowest + shared[block] / expert_parallel


def _add_blocks(
    running: Iterable[tuple[Ranks, float, float]], expert_parallel: int
) -> tuple[dict[int, float], dict[int, float]]:
    """Return longest local and summed shared work of the ranks of each block, ms."""
    local: dict[int, float] = {}
    shared: dict[int, float] = {}
    for ranks, local_ms, shared_ms in running:
        counts: dict[int, int] = {}
        for rank in ranks:
            counts[rank // expert_parallel] = counts.get(rank // expert_parallel, 0) + 1
        for block, count in counts.items():
            local[block] = max(local.get(block, 0.0), local_ms)
            shared[block] = shared.get(block, 0.0) + shared_ms * count
    return local, shared
