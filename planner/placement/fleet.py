"""A strategy together with the models of its schemes, on which a batch is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import fsum, inf

import numpy as np
import numpy.typing as npt

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.placement.bubbles import (
    count_best_micro_batches,
    least_bubbles,
    list_bubbles,
)
from seqplan.plans.scheme import Scheme, Strategy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Models = Mapping[Scheme, SchemeModel]

Bin = list[tuple[int, int]]
"""One micro-batch: (index of the distinct length, how many sequences of that length)."""

PipelineBins = tuple[Bin, ...]
"""The micro-batches of one pipeline."""

ClassPlacement = tuple[PipelineBins, ...]
"""The pipelines of one class."""

ROUND = 1.0 + 1e-12
"""Factor on times and lengths, so that sums that differ by rounding still fit."""

MOST = 64
"""Most numbers of micro-batches that a bound distinguishes."""


@dataclass(frozen=True)
class ClassMode:
    """A recomputation mode of a scheme: coefficients, and Σ padded lengths of a micro-batch.

    ``kept_share`` and ``forward_fraction``: as of ``ModeModel``.
    """

    a: float
    b: float
    c: float
    capacity: int
    name: str | None = None
    kept_share: float = 1.0
    forward_fraction: float = 1 / 3

    def work_ms(self, length: float) -> float:
        """Compute a·l² + b·l of one length (tokens)."""
        return length * (self.a * length + self.b)

    def micro_batch_ms(self, lengths: Sequence[int]) -> float:
        """Compute the cost of a micro-batch: work and c."""
        return fsum(length * (self.a * length + self.b) for length in lengths) + self.c


@dataclass(frozen=True)
class PipelineClass:
    """``count`` identical pipelines of one scheme, as plain numbers for the search.

    A micro-batch with work m costs m + c; a pipeline costs their sum, and some bubbles more of the
    largest with stages, as estimated (``Bubbles``) until the exchanges simulate it.
    ``capacity``: Σ padded lengths of a micro-batch (tokens), a multiple of ``unit``, to which each
    sequence is padded. ``modes``: at least two recomputation modes by ascending capacity, of which
    each micro-batch has the cheapest that holds it, the last as a, b, c and capacity; or none:
    then ``mode`` is the name of the only one, None if the profile has no more. Bounds assume that
    each of these pipelines runs a sequence of ``runs_from`` tokens or more, and only sequences
    shorter than ``shorter_than``; 0 if nothing is assumed.
    ``slowdown``: the factor that the coefficients have for a slow rank; ``forward_fraction``: as of
    ``SchemeModel``. ``least_forward``: the least of it in any mode of the pipelines, if this class
    is of one of several.
    """

    pp: int
    a: float
    b: float
    c: float
    capacity: int
    unit: int
    count: int
    gpus: int
    modes: tuple[ClassMode, ...] = ()
    mode: str | None = None
    runs_from: int = 0
    shorter_than: int = 0
    slowdown: float = 1.0
    forward_fraction: float = 1 / 3
    least_forward: float | None = None

    @classmethod
    def from_model(cls, model: SchemeModel, count: int) -> PipelineClass:
        """Make the class of ``count`` pipelines of a scheme."""
        scheme = model.scheme
        latency = model.latency
        modes = tuple(
            ClassMode(
                a=mode.latency.a,
                b=mode.latency.b,
                c=mode.latency.c,
                capacity=model.longest(mode.max_len),
                name=mode.name,
                kept_share=mode.kept_share,
                forward_fraction=mode.forward_fraction,
            )
            for mode in model.modes
        )
        return cls(
            pp=scheme.pp,
            a=latency.a,
            b=latency.b,
            c=latency.c,
            capacity=model.max_sequence,
            unit=scheme.unit,
            count=count,
            gpus=scheme.gpus,
            modes=modes if len(modes) > 1 else (),
            mode=modes[0].name if len(modes) == 1 else None,
            forward_fraction=model.forward_fraction,
        )

    @cached_property
    def least_bubbles(self) -> float:
        """Return by how many more of the largest micro-batch 1F1B takes at least: λ."""
        return least_bubbles(self.pp, self.forward_fraction)

    @cached_property
    def bubbles_by_number(self) -> tuple[Floats, Floats]:
        """List how many more of the mean, and of the largest micro-batch 1F1B takes.

        At least, of V = 1 … 2·``MOST`` micro-batches.
        """
        if self.pp == 1:
            return np.zeros(2 * MOST), np.zeros(2 * MOST)
        least, largest = self.least_forward_fraction, self.forward_fraction
        return list_bubbles(self.pp, least, largest, 2 * MOST)

    @property
    def least_forward_fraction(self) -> float:
        """Return forward's least share of a micro-batch's time in any mode."""
        if self.least_forward is not None:
            return self.least_forward
        return min(mode.forward_fraction for mode in self.all_modes)

    @cached_property
    def all_modes(self) -> tuple[ClassMode, ...]:
        """List the recomputation modes, also if there is one."""
        if self.modes:
            return self.modes
        only = ClassMode(self.a, self.b, self.c, self.capacity, self.mode)
        return (replace(only, forward_fraction=self.forward_fraction),)

    @cached_property
    def least_c(self) -> float:
        """Return the least overhead of a micro-batch in any mode (ms)."""
        return min(mode.c for mode in self.all_modes)

    @cached_property
    def by_mode(self) -> tuple[PipelineClass, ...]:
        """Return a class of each mode; itself if it has one."""
        if not self.modes:
            return (self,)
        return tuple(
            replace(
                self,
                a=mode.a,
                b=mode.b,
                c=mode.c,
                capacity=mode.capacity,
                modes=(),
                mode=mode.name,
                least_forward=self.least_forward_fraction,
            )
            for mode in self.modes
            if mode.capacity > 0
        )

    def choose_mode(self, lengths: Sequence[int], padded: int | None = None) -> ClassMode:
        """Choose the cheapest mode that holds a micro-batch; the last if none does.

        ``padded``: its tokens, by default Σ of the padded lengths.
        """
        if not self.modes:
            return self.all_modes[0]
        if padded is None:
            padded = sum(self.pad(length) for length in lengths)
        holding = [mode for mode in self.all_modes if padded <= mode.capacity]
        return min(holding or self.all_modes[-1:], key=lambda mode: mode.micro_batch_ms(lengths))

    def least_over_modes(
        self, lengths: Ints, cost_ms: Callable[[ClassMode, Floats, Ints], Floats]
    ) -> Floats:
        """Compute the least cost of each length over the modes that hold it.

        ``cost_ms``: of a mode, by lengths and padded lengths (tokens). That of the last mode if
        none holds a length.
        """
        tokens, padded = lengths.astype(np.float64), self.padded(lengths)
        least = cost_ms(self.all_modes[-1], tokens, padded)
        for mode in self.all_modes[:-1]:
            cost = cost_ms(mode, tokens, padded)
            least = np.where(padded <= mode.capacity, np.minimum(least, cost), least)
        return least

    def work_ms(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Compute a·l² + b·l for each length (tokens), in its cheapest mode."""
        if self.modes:
            return self.least_over_modes(lengths, lambda mode, n, _: n * (mode.a * n + mode.b))
        tokens = lengths.astype(np.float64)
        return tokens * (self.a * tokens + self.b)

    def alone_ms(self, lengths: Ints) -> Floats:
        """Compute pp·(a·l² + b·l + c) of each length (tokens), in its cheapest mode."""
        if self.modes:
            return self.pp * self.least_over_modes(
                lengths, lambda mode, n, _: n * (mode.a * n + mode.b) + mode.c
            )
        return self.pp * (self.work_ms(lengths) + self.c)

    def padded(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Pad each length (tokens) to a multiple of ``unit``."""
        return lengths if self.unit == 1 else -(-lengths // self.unit) * self.unit

    def pad(self, length: int) -> int:
        """Pad one length (tokens) to a multiple of ``unit``."""
        return length if self.unit == 1 else -(-length // self.unit) * self.unit

    def work_with_overhead_ms(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Compute the work of each length together with its tokens' share of a micro-batch's c.

        A full micro-batch of ``capacity`` padded tokens pays c once, so that a token pays at least
        c/capacity, whatever it is packed with.
        """
        if self.modes:
            return self.least_over_modes(
                lengths,
                lambda mode, n, padded: (
                    n * (mode.a * n + mode.b) + padded * (mode.c / mode.capacity)
                ),
            )
        return self.work_ms(lengths) + self.padded(lengths) * (self.c / self.capacity)

    def even_work_ms(self, time_ms: float) -> float:
        """Compute the work of each micro-batch at the best V by a time (ms).

        With pp − 1 bubbles; infinite at pp = 1, as no bubbles limit a micro-batch.
        """
        bubbles, c = self.pp - 1, self.least_c
        if not bubbles:
            return inf
        best = count_best_micro_batches(time_ms, bubbles, c)
        v = max(best, 1.0) if best < inf else float(MOST)
        return time_ms / (v + bubbles) - c

    def most_micro_batches(self, target_ms: float) -> int:
        """Return the number of micro-batches V beyond which more are no use to a bound.

        V offer the work V·(target/(V + μ) − c), and all larger numbers no more than that with λ in
        the place of μ (``bubbles``), which falls from some V on: up to the one from which on that
        is less than the most work of any number. Token capacity V·MaxLen matters up to the tokens
        that the target's work allows. At most ``MOST``, where either has no such limit.
        """
        b, c = min(mode.b for mode in self.all_modes), self.least_c
        by_tokens = target_ms / (b * self.capacity) if b else float(MOST)
        by_work = 1.0
        if self.least_bubbles:
            v = np.arange(1, MOST + 1)
            most = (v * (target_ms / (v + self.bubbles_by_number[0][:MOST]) - c)).max()
            above = v * (target_ms / (v + self.least_bubbles) - c) > most
            by_work = float(v[above].max(initial=1))
        return int(min(max(by_tokens, by_work, 1.0), MOST - 2)) + 2


@dataclass(frozen=True)
class Fleet:
    """A strategy on a cluster: a class per scheme and slowdown, in the strategy's order."""

    strategy: Strategy
    classes: tuple[PipelineClass, ...]

    @classmethod
    def from_strategy(cls, strategy: Strategy, models: Mapping[Scheme, SchemeModel]) -> Fleet:
        """Look up each scheme's model; ``KeyError`` when the cluster cannot run a scheme."""
        return cls(
            strategy,
            tuple(
                PipelineClass.from_model(models[scheme], count) for scheme, count in strategy.counts
            ),
        )

    @property
    def schemes(self) -> list[Scheme]:
        """List the scheme of every class; slow pipelines are a class of their scheme."""
        of_pipelines = list(self.strategy)
        firsts = accumulate((k.count for k in self.classes[:-1]), initial=0)
        return [of_pipelines[first] for first in firsts]

    @property
    def pipelines(self) -> list[PipelineClass]:
        """List the class of every pipeline, in the strategy's order."""
        return [
            pipeline_class for pipeline_class in self.classes for _ in range(pipeline_class.count)
        ]

    @property
    def has_stages(self) -> bool:
        """Whether some pipeline has several stages."""
        return any(pipeline_class.pp > 1 for pipeline_class in self.classes)

    @cached_property
    def max_sequence(self) -> int:
        """Return the longest sequence (tokens) that some pipeline can hold."""
        return max(pipeline_class.capacity for pipeline_class in self.classes)

    def assume_longest(self, batch_longest: int) -> tuple[Fleet, ...]:
        """List the fleet once for each class that holds the longest sequence, assumed there.

        Without stages on one of them nothing follows from that: none are returned then.
        """
        holding = [k for k, of in enumerate(self.classes) if of.capacity >= batch_longest]
        if any(self.classes[k].pp == 1 for k in holding):
            return ()
        return tuple(self.assume_from(batch_longest, k) for k in holding)

    def assume_from(self, length: int, place: int) -> Fleet:
        """Return the fleet with one pipeline of a class apart, which runs ``length`` or more."""
        pipeline_class = self.classes[place]
        one = replace(pipeline_class, count=1, runs_from=length)
        others = replace(pipeline_class, count=pipeline_class.count - 1)
        apart = (one, others) if others.count else (one,)
        return replace(self, classes=(*self.classes[:place], *apart, *self.classes[place + 1 :]))
