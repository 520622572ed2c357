"""What a comparison of training systems consists of: plain data between judge, CLI and report."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from seqplan.plans.scheme import Scheme


@dataclass(frozen=True)
class Span:
    """One thing that some ranks do: ``kind`` is forward, backward, exchange, optimizer or switch.

    ``ranks``: half-open range of global ranks (one pipeline stage); times in ms from the start of
    the iteration.
    """

    ranks: tuple[int, int]
    kind: str
    micro_batch: int | None
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class Iteration:
    """One simulated iteration of one system; times in ms.

    ``propagation_ms``: all pipelines, forward and backward; ``exchange_ms``: parameter pull and
    gradient push that is not hidden; ``rank_busy_ms``: forward and backward per rank;
    ``bubble_ratio``: idle share of rank-time during propagation; ``imbalance``: (slowest − fastest)
    over fastest rank's end of propagation, over ranks with work; ``mfu``: model FLOPs over peak,
    attention counted by Σl² of the sequences, None where the profile does not state the model's
    sizes or the GPU's peak is unknown; ``gap`` and ``planning_ms``: of our plans only.
    """

    step: int
    strategy: str
    schemes: tuple[tuple[Scheme, int], ...]
    tokens: int
    sequences: int
    longest: int
    propagation_ms: float
    exchange_ms: float
    optimizer_ms: float
    rank_busy_ms: tuple[float, ...]
    rank_end_ms: tuple[float, ...]
    bubble_ratio: float
    imbalance: float
    mfu: float | None
    gap: float | None
    planning_ms: float | None
    spans: tuple[Span, ...]

    @property
    def total_ms(self) -> float:
        """The whole iteration."""
        return self.propagation_ms + self.exchange_ms + self.optimizer_ms

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the step per second of the iteration."""
        return self.tokens / self.total_ms * 1000


@dataclass(frozen=True)
class System:
    """A named way to train, with what it did at every step of the comparison.

    ``key``: stable identifier, ``ours`` for the planner; ``balanced``: whether dispatch and packing
    are ours on the system's strategy.
    """

    key: str
    name: str
    description: str
    balanced: bool
    iterations: tuple[Iteration, ...]

    @property
    def mean_ms(self) -> float:
        """Mean iteration."""
        return mean(iteration.total_ms for iteration in self.iterations)

    @property
    def tokens_per_s(self) -> float:
        """All tokens over all time."""
        tokens = sum(iteration.tokens for iteration in self.iterations)
        return tokens / sum(iteration.total_ms for iteration in self.iterations) * 1000


@dataclass(frozen=True)
class Comparison:
    """Systems on the same batches under one judge. ``systems[0]`` is ours.

    ``left_out``: (name, why) of baselines that the profile or the batches do not allow;
    ``advice``: one sentence on whether heterogeneous plans are worth it here; ``assumptions``:
    what the judge took for granted, one sentence each; ``optimizer_shards`` (None: all GPUs) and
    ``include_flagged``: as in the cluster.
    """

    profile: str
    hardware: str
    gpus: int
    max_len: int
    tokens: int
    seed: int
    sequences: int
    histogram: tuple[tuple[int, int, int], ...]
    """(up to length, sequences, tokens) per power-of-two bucket of the data set."""
    systems: tuple[System, ...]
    left_out: tuple[tuple[str, str], ...]
    advice: str
    assumptions: tuple[str, ...]
    optimizer_shards: int | None = None
    include_flagged: bool = False

    @property
    def ours(self) -> System:
        """The planner's plans."""
        return self.systems[0]

    def speedups(self, system: System) -> list[float]:
        """Per step, the system's iteration over ours."""
        pairs = zip(system.iterations, self.ours.iterations, strict=True)
        return [theirs.total_ms / ours.total_ms for theirs, ours in pairs]
