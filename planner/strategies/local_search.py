"""Search for the strategies of a proposal: swaps of pipelines, each judged by a placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.dispatch import dispatch, probe
from seqplan.planner.placement.fill import Filler, Placement
from seqplan.planner.placement.fleet import Fleet, Models
from seqplan.plans.scheme import Scheme, Strategy

FIRST_SIZES = (1, 8)
"""Sizes of a swap that are tried first: on many GPUs a single pipeline changes too little."""


@dataclass(frozen=True)
class SwapSearch:
    """What strategies are searched for: a batch on ``gpus`` GPUs, with these schemes' models."""

    batch: Batch
    models: Models
    gpus: int

    def improve(
        self, start: Placement, schemes: Sequence[Scheme], lower_ms: float, *, moves: int
    ) -> Placement:
        """Improve a strategy by swaps, each judged by a single fill.

        1. Directions (scheme out, scheme in) are tried in order, from small swaps up.
        2. One that shortens the step is followed with doubled size while it does.
        3. Then the least time of the strategy reached is searched and directions are tried anew.

        Ends after so many ``moves``, when no direction helps, or at ``lower_ms``.
        """
        best = start
        visited = {start.strategy}
        for _ in range(moves):
            better = self._follow_first(best, schemes, lower_ms, visited)
            if better is None:
                break
            refined = dispatch(Filler(better.fleet, self.batch), lower_ms, known=better.filling)
            best = Placement(better.fleet, refined or better.filling)
        return best

    def _follow_first(
        self, start: Placement, schemes: Sequence[Scheme], lower_ms: float, visited: set[Strategy]
    ) -> Placement | None:
        """Follow the first direction that shortens the step while it does; None without one."""
        for outgoing, _ in start.strategy.counts:
            for incoming in schemes:
                if outgoing == incoming:
                    continue
                for first_size in FIRST_SIZES:
                    best, size = start, first_size
                    while True:
                        strategy = swap(best.strategy, outgoing, incoming, size, self.gpus)
                        better = self._place(strategy, best, lower_ms, visited)
                        if better is None:
                            break
                        best = better
                        size *= 2
                    if best is not start:
                        return best
        return None

    def _place(
        self, strategy: Strategy | None, best: Placement, lower_ms: float, visited: set[Strategy]
    ) -> Placement | None:
        """Place the batch on a strategy not visited yet; None if that does not beat the best."""
        if strategy is None or strategy in visited:
            return None
        visited.add(strategy)
        fleet = Fleet.from_strategy(strategy, self.models)
        if fleet.max_sequence < self.batch.longest:
            return None
        filling = probe(Filler(fleet, self.batch), lower_ms, best.objective_ms)
        return None if filling is None else Placement(fleet, filling)


def swap(
    strategy: Strategy, outgoing: Scheme, incoming: Scheme, size: int, gpus: int
) -> Strategy | None:
    """Give up pipelines of ``outgoing`` for ``incoming``; None when there are too few.

    The smaller side is ``size`` pipelines of the larger scheme; GPUs that the swap leaves over,
    with those idle before, go to the incoming scheme.
    """
    counts = dict(strategy.counts)
    idle = gpus - strategy.gpus
    larger_goes = outgoing.gpus >= incoming.gpus
    give = size if larger_goes else -(-(size * incoming.gpus - idle) // outgoing.gpus)
    take = (give * outgoing.gpus + idle) // incoming.gpus
    if not 1 <= give <= counts.get(outgoing, 0) or not take:
        return None
    counts[outgoing] -= give
    counts[incoming] = counts.get(incoming, 0) + take
    return Strategy.from_counts(counts)
