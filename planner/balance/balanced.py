"""What ``balance`` returns: micro-batches of every rank, and how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

from seqplan.planner.balance.micro_batch_counts import MicroBatches
from seqplan.planner.balance.mode import Mode
from seqplan.planner.balance.shapes import pad_to_shape
from seqplan.plans.percent import count_of

Execution = Literal["lockstep", "uniform"]


class Pricing(Protocol):
    """MicroBatchTimes of micro-batches on a rank that is not slower than others."""

    @property
    def phases(self) -> tuple[str, ...]:
        """Name the phases after each of which ranks wait for each other."""
        ...

    def phases_ms(self, positions: Sequence[int]) -> tuple[float, ...]:
        """Time a micro-batch of these samples in each phase."""
        ...

    def choose_mode(self, positions: Sequence[int]) -> str:
        """Name the recomputation mode of a micro-batch."""
        ...

    def count_padded(self, positions: Sequence[int]) -> int:
        """Count the tokens of a micro-batch with its padding, in the last phase."""
        ...


@dataclass(frozen=True)
class ModePricing:
    """Each micro-batch takes the cheapest mode that holds it; ``modes`` by ascending capacity.

    ``shapes``: sizes (tokens, ascending) to the next of which it is padded, any size without. A
    token of that padding takes b.
    """

    lengths: Sequence[int]
    modes: tuple[Mode, ...]
    pad_to: int = 1
    shapes: tuple[int, ...] = ()

    phases = ("",)

    def phases_ms(self, positions: Sequence[int]) -> tuple[float, ...]:
        """Time a micro-batch, which has one phase."""
        return (self._cheapest(positions)[0] if positions else 0.0,)

    def choose_mode(self, positions: Sequence[int]) -> str:
        """Name the cheapest mode that holds a micro-batch; an empty one has the first."""
        return self._cheapest(positions)[1].name if positions else self.modes[0].name

    def count_padded(self, positions: Sequence[int]) -> int:
        """Count the tokens of a micro-batch with its padding; an empty one has none."""
        tokens = self._tokens(positions)
        return pad_to_shape(tokens, self.shapes) if self.shapes and positions else tokens

    def _tokens(self, positions: Sequence[int]) -> int:
        return sum(-(-self.lengths[i] // self.pad_to) * self.pad_to for i in positions)

    def _cheapest(self, positions: Sequence[int]) -> tuple[float, Mode]:
        lengths = [self.lengths[i] for i in positions]
        padded = self.count_padded(positions)
        padding = padded - self._tokens(positions) if self.shapes else 0
        holding = [m for m in self.modes if padded <= m.capacity]
        costs = [
            (mode.cost.micro_batch_ms(lengths) + mode.cost.b * padding, mode)
            for mode in holding or self.modes[-1:]
        ]
        return min(costs, key=lambda option: option[0])


@dataclass(frozen=True)
class MicroBatchTimes:
    """Milliseconds of micro-batches, by rank, micro-batch and phase; slower ranks take longer."""

    of_ranks: tuple[tuple[tuple[float, ...], ...], ...]
    execution: Execution

    @classmethod
    def from_parts(
        cls,
        parts: MicroBatches,
        pricing: Pricing,
        factors: Sequence[float | None],
        execution: Execution,
    ) -> MicroBatchTimes:
        """Time every micro-batch; ``factors``: how much slower each rank is, None if it is lost."""
        return cls(
            tuple(
                tuple(
                    tuple((factor or 0.0) * ms for ms in pricing.phases_ms(micro))
                    for micro in of_rank
                )
                for of_rank, factor in zip(parts, factors, strict=True)
            ),
            execution,
        )

    def phases_ms(self) -> tuple[float, ...]:
        """Sum, for each phase, what ranks wait for: the slowest of a micro-step or of the step."""
        ranks = [of_rank for of_rank in self.of_ranks if of_rank]
        phases = range(len(ranks[0][0]))
        if self.execution == "lockstep":
            return tuple(
                sum(max(ms[p] for ms in of_step) for of_step in zip(*ranks, strict=True))
                for p in phases
            )
        return tuple(max(sum(ms[p] for ms in of_rank) for of_rank in ranks) for p in phases)

    def total_ms(self) -> float:
        """Return the time of the step."""
        return float(sum(self.phases_ms()))


@dataclass(frozen=True)
class Balanced:
    """Micro-batches of a step, for each rank.

    ``micro_batches``: by rank and micro-batch, lists of positions of the samples; in lockstep all
    ranks have as many, except lost ones, which have none. ``lengths``: tokens of each sample, in
    the last phase if it has several. ``predicted_ms``: in lockstep Σ over micro-steps (and phases)
    of the slowest rank, else the slowest rank; ``lower_bound_ms``: proven for every way to balance
    these samples. ``slowdown``: how many times as long each rank computes, None if it is lost.
    """

    micro_batches: MicroBatches
    lengths: tuple[int, ...]
    pricing: Pricing
    execution: Execution
    predicted_ms: float
    lower_bound_ms: float
    slowdown: tuple[float | None, ...]

    def __repr__(self) -> str:
        counts = sorted({len(of_rank) for of_rank in self.micro_batches} - {0})
        fewest = f"{counts[0]} to " if counts[0] < counts[-1] else ""
        ranks = len(self.micro_batches)
        return (
            f"<Balanced: {count_of(len(self.lengths), 'sequence')}, "
            f"{count_of(sum(self.lengths), 'token')} in "
            f"{fewest}{count_of(counts[-1], 'micro-batch')} on "
            f"{'each of ' if ranks > 1 else ''}{count_of(ranks, 'rank')}, "
            f"{self.predicted_ms:,.1f} ms, gap {100 * self.gap:.2f} %>"
        )

    @property
    def gap(self) -> float:
        """Return predicted / bound − 1: no other way is faster by more."""
        return self.predicted_ms / self.lower_bound_ms - 1 if self.lower_bound_ms else 0.0

    @cached_property
    def recompute(self) -> list[list[str]]:
        """Name the recomputation mode of each rank's micro-batches; empty ones have the first."""
        return [
            [self.pricing.choose_mode(micro) for micro in of_rank] for of_rank in self.micro_batches
        ]

    @cached_property
    def padded_tokens(self) -> list[list[int]]:
        """Count the tokens of each rank's micro-batches with padding, to a shape if there are."""
        return [
            [self.pricing.count_padded(micro) for micro in of_rank]
            for of_rank in self.micro_batches
        ]

    @cached_property
    def _times(self) -> MicroBatchTimes:
        return MicroBatchTimes.from_parts(
            self.micro_batches, self.pricing, self.slowdown, self.execution
        )

    @cached_property
    def phase_ms(self) -> dict[str, float]:
        """Return how long each phase makes the ranks wait (ms); the longest binds."""
        return dict(zip(self.pricing.phases, self._times.phases_ms(), strict=True))

    @cached_property
    def rank_ms(self) -> tuple[float, ...]:
        """Return the computing time of each rank (ms), waiting for others apart."""
        return tuple(sum(sum(ms) for ms in of_rank) for of_rank in self._times.of_ranks)

    @property
    def imbalance(self) -> float:
        """Return by what share the slowest rank computes longer than the mean, without lost."""
        times = [ms for ms, f in zip(self.rank_ms, self.slowdown, strict=True) if f is not None]
        return max(times) / (sum(times) / len(times)) - 1

    def order(self) -> list[int]:
        """Return the positions, rank after rank: the order in which a driver sends."""
        return [i for of_rank in self.micro_batches for micro in of_rank for i in micro]

    def inverse(self) -> list[int]:
        """Return, for each position in ``lengths``, its place in ``order``."""
        places = [0] * len(self.lengths)
        for place, position in enumerate(self.order()):
            places[position] = place
        return places
