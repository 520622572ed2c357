"""A comparison of training systems: plain data between simulator, CLI and report."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from seqplan.planner.comparison.coverage import Coverage
from seqplan.planner.simulation.iteration import Iteration


@dataclass(frozen=True)
class System:
    """A named way to train, with its results at every step of the comparison.

    ``key``: stable identifier, ``ours`` for the planner; ``balanced``: whether dispatch and packing
    are ours on the system's strategy; ``static``: the homogeneous strategy that it keeps, if it
    does.
    """

    key: str
    name: str
    description: str
    balanced: bool
    iterations: tuple[Iteration, ...]
    static: str | None = None

    @property
    def mean_ms(self) -> float:
        """Return the mean time of an iteration."""
        return mean(iteration.total_ms for iteration in self.iterations)

    @property
    def tokens_per_s(self) -> float:
        """Return all tokens over all time."""
        tokens = sum(iteration.tokens for iteration in self.iterations)
        return tokens / sum(iteration.total_ms for iteration in self.iterations) * 1000

    @property
    def mfu(self) -> float | None:
        """Return all model FLOPs over the GPUs' peak in all time; None if unknown.

        Of systems on the same batches, a faster one has the higher.
        """
        times = [iteration.total_ms for iteration in self.iterations]
        shares = [iteration.mfu for iteration in self.iterations if iteration.mfu is not None]
        if len(shares) < len(times):
            return None
        return sum(share * ms for share, ms in zip(shares, times, strict=True)) / sum(times)


@dataclass(frozen=True)
class Comparison:
    """Systems on the same batches in one simulator. ``systems[0]`` is ours.

    ``left_out``: (name, why) of baselines that the profile or the batches do not allow;
    ``advice``: one sentence on whether heterogeneous plans are worth it here; ``assumptions``:
    the simulator assumes, one sentence each; ``optimizer_shards`` (None: all GPUs) and
    ``include_flagged``: as in the cluster; ``baseline``: (trainer, name, key) of the system that
    users of the requested trainer run today.
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
    baseline: tuple[str, str, str] | None = None
    survival: tuple[tuple[str, float], ...] = ()
    """(error of the costs, our gain over the best static strategy with it), the profile's first."""
    survival_error: float = 0.0
    """Share of these errors: that of robust plans, or a usual one."""
    pays: bool | None = None
    """Whether our plans pay off over the nearest rival; None if that is open."""
    coverage: Coverage | None = None
    """The work of the data that the steps lack; None for steps that no data was drawn for."""

    @property
    def ours(self) -> System:
        """Return the system of the planner's plans."""
        return self.systems[0]

    @property
    def ranked(self) -> list[System]:
        """Return the systems by their mean iteration, the fastest first, ours before equal ones."""
        return sorted(self.systems, key=lambda system: system.mean_ms)

    @property
    def today(self) -> tuple[str, System] | None:
        """Pair the system that the trainer's users run today with a label, if compared."""
        if self.baseline is None:
            return None
        trainer, name, key = self.baseline
        system = next((system for system in self.systems if system.key == key), None)
        return None if system is None else (f"{name}, as users of {trainer} run today", system)

    def speedups(self, system: System) -> list[float]:
        """Divide, step by step, the system's iteration by ours."""
        pairs = zip(system.iterations, self.ours.iterations, strict=True)
        return [theirs.total_ms / ours.total_ms for theirs, ours in pairs]


def mean_compute_ms(system: System) -> float:
    """Return the mean over the steps, without sync and optimizer."""
    return sum(iteration.compute_ms for iteration in system.iterations) / len(system.iterations)
