"""A strategy together with the models of its schemes, on which a batch is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum, inf, sqrt

import numpy as np
import numpy.typing as npt

from seqplan.costs.scheme_model import SchemeModel
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

_ROUND = 1.0 + 1e-12

MOST = 64
"""Most numbers of micro-batches that a bound distinguishes."""


@dataclass(frozen=True)
class ClassMode:
    """A recomputation mode of a scheme: coefficients, and Σ padded lengths of a micro-batch."""

    a: float
    b: float
    c: float
    capacity: int
    name: str | None = None
    kept_share: float = 1.0

    def work_ms(self, length: float) -> float:
        """Compute a·l² + b·l of one length (tokens)."""
        return length * (self.a * length + self.b)

    def micro_batch_ms(self, lengths: Sequence[int]) -> float:
        """Compute the cost of a micro-batch: work and c."""
        return fsum(length * (self.a * length + self.b) for length in lengths) + self.c


@dataclass(frozen=True)
class PipelineClass:
    """``count`` identical pipelines of one scheme, as plain numbers for the search.

    A micro-batch with work m costs m + c; a pipeline costs, in form S,
    ``Σ(m_j + c) + (pp − 1)·(max m_j + c)``: exact at pp = 1, else an upper bound on its 1F1B
    simulation as long as micro-batches do not rise again once they have fallen (``order``).
    ``capacity``: Σ padded lengths of a micro-batch (tokens), a multiple of ``unit``, to which each
    sequence is padded. ``modes``: at least two recomputation modes by ascending capacity, of which
    each micro-batch has the cheapest that holds it, the last as a, b, c and capacity; or none:
    then ``mode`` is the name of the only one, None if the profile has no more.
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
        )

    @cached_property
    def all_modes(self) -> tuple[ClassMode, ...]:
        """List the recomputation modes, also if there is one."""
        return self.modes or (ClassMode(self.a, self.b, self.c, self.capacity, self.mode),)

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
            )
            for mode in self.modes
            if mode.capacity > 0
        )

    def choose_mode(self, lengths: Sequence[int]) -> ClassMode:
        """Choose the cheapest mode that holds a micro-batch; the last if none does."""
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

    def most_micro_batches(self, target_ms: float) -> int:
        """Return the number of micro-batches V beyond which more are no use.

        Work capacity V·(target/(V + pp − 1) − c) rises up to V = √(target·(pp − 1)/c) − (pp − 1);
        token capacity V·MaxLen matters up to the tokens that the target's work allows. At most
        ``MOST``, where either has no such limit.
        """
        b, c = min(mode.b for mode in self.all_modes), self.least_c
        by_tokens = target_ms / (b * self.capacity) if b else float(MOST)
        by_work = 1.0
        if self.pp > 1:
            root = (target_ms * (self.pp - 1) / c) ** 0.5 if c else inf
            by_work = root - (self.pp - 1)
        return int(min(max(by_tokens, by_work, 1.0), MOST - 2)) + 2


def gpu_ms(classes: Sequence[PipelineClass], lengths: Ints) -> Floats:
    """Compute the GPU-time (classes, n) of each length on each class.

    With its tokens' share of c (``work_with_overhead_ms``); infinite if a class does not hold it.
    """
    if any(k.modes for k in classes):
        return np.array(
            [
                np.where(
                    k.padded(lengths) <= k.capacity,
                    k.gpus * k.work_with_overhead_ms(lengths),
                    np.inf,
                )
                for k in classes
            ]
        )
    a, b, c = (
        np.array([[coefficient] for coefficient in column])
        for column in zip(*((k.a, k.b, k.c / k.capacity) for k in classes), strict=True)
    )
    tokens = lengths.astype(np.float64)
    padded = np.array([k.padded(lengths) for k in classes])
    gpus = np.array([[k.gpus] for k in classes])
    capacity = np.array([[k.capacity] for k in classes])
    cost = gpus * (tokens * (a * tokens + b) + padded * c)
    return np.where(lengths <= capacity, cost, np.inf)


def drop_dominated(models: Models) -> dict[Scheme, SchemeModel]:
    """Leave schemes out that another one replaces at no loss, whatever is planned.

    It takes no more GPUs, stages, time for any micro-batch or padding, and holds no less. Of two
    equal ones the first in scheme order stays.
    """

    modes_of = {
        scheme: PipelineClass.from_model(model, 1).all_modes for scheme, model in models.items()
    }

    def replaces(other: SchemeModel, model: SchemeModel) -> bool:
        by, it = other.scheme, model.scheme
        return (
            by.gpus <= it.gpus
            and by.pp <= it.pp
            and it.unit % by.unit == 0
            and all(
                any(
                    as_fast.capacity >= mode.capacity
                    and as_fast.a <= mode.a
                    and as_fast.b <= mode.b
                    and as_fast.c <= mode.c
                    for as_fast in modes_of[by]
                )
                for mode in modes_of[it]
            )
        )

    left: dict[Scheme, SchemeModel] = {}
    for scheme, model in sorted(models.items()):
        if any(replaces(other, model) for other in left.values()):
            continue
        left = {s: other for s, other in left.items() if not replaces(model, other)}
        left[scheme] = model
    return left


@dataclass(frozen=True)
class Fleet:
    """A strategy on a cluster: one ``PipelineClass`` per scheme, in the strategy's order."""

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
    def pipelines(self) -> list[PipelineClass]:
        """List the class of every pipeline, in the strategy's order."""
        return [
            pipeline_class for pipeline_class in self.classes for _ in range(pipeline_class.count)
        ]

    @cached_property
    def max_sequence(self) -> int:
        """Return the longest sequence (tokens) that some pipeline can hold."""
        return max(pipeline_class.capacity for pipeline_class in self.classes)


def form_s(pipeline_class: PipelineClass, lengths: list[int], pipeline: PipelineBins) -> float:
    """Compute form S of a pipeline's micro-batches: Σ(m_j + c) + (pp − 1)·(max m_j + c).

    0 when empty.
    """
    if not pipeline:
        return 0.0
    if pipeline_class.modes:
        return _form_s_of_modes(pipeline_class, lengths, pipeline)
    a, b, c = pipeline_class.a, pipeline_class.b, pipeline_class.c
    # Not sum(): it compensates from Python 3.12 on, and the kernel adds one by one.
    total = slowest = 0.0
    for micro in pipeline:
        work = 0.0
        for i, n in micro:
            work += n * (lengths[i] * (a * lengths[i] + b))
        cost = c + work
        total += cost
        slowest = max(slowest, cost)
    return total + (pipeline_class.pp - 1) * slowest


def _form_s_of_modes(
    pipeline_class: PipelineClass, lengths: list[int], pipeline: PipelineBins
) -> float:
    """Compute form S with each micro-batch in the cheapest mode that holds it."""
    total = slowest = 0.0
    pad = pipeline_class.pad
    for micro in pipeline:
        padded = 0
        for i, n in micro:
            padded += n * pad(lengths[i])
        cost = inf
        for mode in pipeline_class.modes:
            if padded <= mode.capacity:
                work = 0.0
                for i, n in micro:
                    work += n * mode.work_ms(lengths[i])
                cost = min(cost, mode.c + work)
        total += cost
        slowest = max(slowest, cost)
    return total + (pipeline_class.pp - 1) * slowest


def longest_alone(pipeline_class: PipelineClass, target_ms: float) -> int:
    """Return the longest sequence (tokens) that alone ends by the target."""
    if pipeline_class.modes:
        return max(min(k.capacity, longest_alone(k, target_ms)) for k in pipeline_class.by_mode)
    work = target_ms * _ROUND / pipeline_class.pp - pipeline_class.c
    if work <= 0:
        return 0
    return int(
        2
        * work
        / (
            pipeline_class.b
            + sqrt(pipeline_class.b * pipeline_class.b + 4 * pipeline_class.a * work)
        )
        * _ROUND
    )
