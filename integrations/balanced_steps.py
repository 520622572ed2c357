"""Steps for trainers that go through a data set by epochs: drawn, and balanced over the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqplan.costs.latency import Latency
from seqplan.costs.lengths.digest import lengths_digest
from seqplan.integrations.replacement import describe_plan
from seqplan.planner.argument_checks import read_seed, read_whole_number
from seqplan.planner.balance.balance_ranks import balance
from seqplan.planner.balance.length_options import LengthOptions
from seqplan.planner.balance.loads import check_loads
from seqplan.planner.balance.mode import Mode
from seqplan.planner.balance.phase import Phase
from seqplan.planner.batches.batch import whole_lengths
from seqplan.planner.placement.slowdown import Slowdown
from seqplan.plans.recomputation import split_mode


def list_lengths(samples: Any) -> npt.NDArray[np.int64]:
    """List the tokens of each sample: its column ``length`` or its ``input_ids``."""
    if "length" in (getattr(samples, "column_names", None) or []):
        return np.asarray(samples["length"], dtype=np.int64)
    return np.array([len(ids) for ids in samples["input_ids"]], dtype=np.int64)


@dataclass(frozen=True)
class RankedStep:
    """One optimizer step: places in the data set, by rank and micro-batch, and the prediction.

    ``figures``: ``predicted_ms``, ``gap``, ``imbalance`` and ``tokens``, for a trainer's metrics;
    ``modes``: recomputation modes by rank and micro-batch, None if the trainer's settings apply.
    """

    micro_batches: list[list[list[int]]]
    figures: dict[str, float]
    modes: list[list[str]] | None = None


class BalancedSteps:
    """Draws ``sequences`` of a data set for each step and balances them over the ranks.

    ``lengths``: tokens of every sequence; ``capacity``: tokens of a micro-batch; ``cost``: what one
    costs (``seqplan.Cost``). ``modes``: in place of both, the recomputation modes that the trainer
    switches to (``seqplan.Mode``), of which each micro-batch has the cheapest that holds it. Each
    epoch is a permutation fixed by (seed, epoch); its rest beyond whole steps is not used, as with
    a sampler that drops the last batch. The same on every rank, and for every epoch whatever came
    before. ``loads``: in place of lengths, capacity and cost, the work of every sequence in each
    phase (``seqplan.Phase``), the language model last; in lockstep ranks wait between phases.
    ``slowdown``: how many times as long each rank takes as ``cost``; slower ones get less.
    ``ValueError`` for less data than a step, a sequence that no micro-batch holds, an unknown mode,
    or a factor that cannot be.
    """

    def __init__(
        self,
        lengths: Sequence[int] | npt.NDArray[np.integer] | None,
        sequences: int,
        capacity: int | None = None,
        cost: Latency | None = None,
        *,
        modes: Sequence[Mode] | None = None,
        loads: Sequence[Phase] | None = None,
        seed: int = 0,
        pad_to: int = 1,
        slowdown: Sequence[float] | None = None,
    ) -> None:
        # Sequences that no step can hold are rejected before training.
        if loads is not None:
            check_loads(loads)
            balance(lengths, 1, capacity, cost, modes=modes, loads=[p.take([0]) for p in loads])
            self._lengths = loads[-1].tokens
        else:
            self._lengths = whole_lengths(lengths)
            LengthOptions.read(
                self._lengths,
                capacity,
                cost,
                modes,
                pad_to=read_whole_number("pad_to", pad_to),
                keep_together=None,
                equal_samples=False,
                shapes=None,
            )
        sequences = read_whole_number("sequences", sequences)
        if sequences > len(self._lengths):
            raise ValueError(
                f"a step of {sequences} sequences cannot be drawn from {len(self._lengths)}"
            )
        by_capacity = sorted(modes or (), key=lambda mode: mode.capacity)
        self.modes = tuple(mode.name for mode in by_capacity)
        """Names of the recomputation modes, the one that holds least first."""
        for name in self.modes:
            split_mode(name)  # rejects unknown ones
        self._sequences, self._capacity, self._cost = sequences, capacity, cost
        self._given_modes, self._seed, self._pad_to = modes, read_seed(seed), pad_to
        self._slowdown, self._loads = slowdown, loads
        if slowdown is not None:
            factors = Slowdown.from_value(slowdown, len(slowdown)).factors
            if None in factors:
                lost = factors.index(None)
                raise ValueError(f"slowdown: rank {lost} is lost. Start the trainer without it")

    def check_length(self, place: int, tokens: int) -> None:
        """Compare a sample with its planned length. ``ValueError`` if they differ."""
        planned = int(self._lengths[place])
        if tokens != planned:
            raise ValueError(
                f"sample {place} has {tokens} tokens, its planned length is {planned}. "
                "Make lengths from the data set that is trained on"
            )

    @property
    def settings(self) -> dict[str, int | str]:
        """What decides the sequences of each step: ``sequences``, ``seed``, digest of lengths."""
        digest = lengths_digest(self._lengths)
        return {"sequences": self._sequences, "seed": self._seed, "lengths": digest}

    @property
    def steps(self) -> int:
        """Return the steps of an epoch."""
        return len(self._lengths) // self._sequences

    def __len__(self) -> int:
        """Return the sequences of the data set."""
        return len(self._lengths)

    def epoch(
        self, epoch: int, ranks: int, *, lockstep: bool, first: int = 0
    ) -> Iterator[RankedStep]:
        """Yield the steps of an epoch from the ``first`` on, for so many ranks.

        ``lockstep``: ranks wait for each other after every micro-batch and have equally many.
        """
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._lengths))
        for step in range(first, self.steps):
            places = order[step * self._sequences : (step + 1) * self._sequences]
            balanced = balance(
                None if self._loads else self._lengths[places],
                ranks,
                self._capacity,
                self._cost,
                modes=self._given_modes,
                loads=[load.take(places) for load in self._loads] if self._loads else None,
                barrier=lockstep,
                execution="lockstep" if lockstep else "uniform",
                pad_to=self._pad_to,
                slowdown=self._slowdown,
            )
            chosen = [
                [[int(places[i]) for i in micro] for micro in of_rank]
                for of_rank in balanced.micro_batches
            ]
            yield RankedStep(
                chosen,
                {**describe_plan(balanced), "tokens": float(self._lengths[places].sum())},
                balanced.recompute if self.modes else None,
            )
