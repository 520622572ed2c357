"""Rounds of one micro-batch a rank: each lasts as long as its slowest rank (FSDP, ZeRO-3).

The least Σ over rounds of the slowest micro-batch, every micro-batch within its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from seqplan.planner.placement.class_fill import PythonFill
from seqplan.planner.placement.fill import unassigned
from seqplan.planner.placement.fleet import Bin, ClassPlacement, Ints, PipelineClass
from seqplan.planner.placement.kernel import KernelFill, PackedPlacement

EXTRA_ROUNDS = 2
"""Rounds tried beyond the fewest, in multiples of what the host wants."""

TOLERANCE = 1e-3
"""Relative width at which a search for a target ends."""

GOOD = 3e-3
"""Within this of the bound a plan is not improved."""

TRIED_FILLS = 40
"""Rounds filled at most to improve one plan."""

FACTORS = (0.8, 0.87, 0.92, 0.96, 1.04, 1.08, 1.15, 1.25)
"""Multiples of one round's target that are tried, the others following."""

PASSES = 2
_ROUND = 1.0 + 1e-12

_OfRound = tuple[ClassPlacement | PackedPlacement, tuple[float, ...]]
"""What one round placed, and each rank's time with the overhead that it was filled with (ms)."""


@dataclass(frozen=True)
class Sequences:
    """Distinct lengths (tokens, descending) and how many sequences have each."""

    lengths: Ints
    counts: Ints

    @property
    def tokens(self) -> int:
        """Return all tokens."""
        return int(self.lengths @ self.counts)


@dataclass(frozen=True)
class Rounds:
    """Per round the micro-batches of all ranks, some empty perhaps, and the time of each round."""

    micro_batches: tuple[tuple[Bin, ...], ...]
    times_ms: tuple[float, ...]

    @property
    def total_ms(self) -> float:
        """Return Σ rounds."""
        return sum(self.times_ms)


def fewest_rounds(micro_batch: PipelineClass, sequences: Sequences, ranks: int) -> int:
    """Count the rounds that tokens need, and that sequences above half of a micro-batch need."""
    padded = micro_batch.padded(sequences.lengths)
    by_tokens = ceil(int(padded @ sequences.counts) / (micro_batch.capacity * ranks))
    large = int(sequences.counts[2 * padded > micro_batch.capacity].sum())
    return max(1, by_tokens, ceil(large / ranks))


def rounds_bound_ms(
    micro_batch: PipelineClass, sequences: Sequences, ranks: int, rounds: int
) -> float:
    """Prove a lower bound (ms) on every plan of exactly ``rounds`` rounds.

    Rounds ordered by their time, longest first. The j-th lasts at least as long alone as the
    ((j − 1)·ranks + 1)-th of the sequences of which no two share a micro-batch. The first j hold at
    most j·ranks·capacity tokens, whose work is at most that of the longest sequences with as many;
    the work that is left is spread over the ranks of the other rounds. The bound is the largest of
    these sums over j; j = 0 is the area.
    """
    lengths, counts = sequences.lengths, sequences.counts
    work = micro_batch.work_ms(lengths)
    total = float(work @ counts)
    alone_ms = _round_floors_ms(micro_batch, sequences, ranks, rounds)
    # Tokens without padding: with it work per token would not rise with the length.
    tokens_up_to = np.concatenate([[0], np.cumsum(lengths * counts)]).astype(np.float64)
    work_up_to = np.concatenate([[0.0], np.cumsum(work * counts)])
    best = total / ranks + rounds * micro_batch.c
    floors = 0.0
    for j in range(1, rounds + 1):
        floors += alone_ms[j - 1]
        held = float(np.interp(j * ranks * micro_batch.capacity, tokens_up_to, work_up_to))
        rest = (total - held) / ranks + (rounds - j) * micro_batch.c if j < rounds else 0.0
        best = max(best, floors + max(rest, sum(alone_ms[j:])))
    return best * (1 - 1e-9)


def _round_floors_ms(
    micro_batch: PipelineClass, sequences: Sequences, ranks: int, rounds: int
) -> list[float]:
    """Bound each round's time alone, longest round first (ms)."""
    lengths, padded = sequences.lengths, micro_batch.padded(sequences.lengths)
    large = np.where(2 * padded > micro_batch.capacity, sequences.counts, 0)
    up_to = np.cumsum(large)
    floors = []
    for j in range(rounds):
        place = int(np.searchsorted(up_to, j * ranks, side="right")) if j else 0
        longest = int(lengths[place]) if place < len(lengths) else 0
        work = longest * (micro_batch.a * longest + micro_batch.b)
        floors.append(work + micro_batch.c)
    return floors


def plan_rounds(
    micro_batch: PipelineClass, sequences: Sequences, ranks: int, multiple: int = 1
) -> tuple[Rounds, float]:
    """Find rounds for all sequences, and a lower bound over all plans (ms).

    For numbers of rounds from the fewest on (multiples of ``multiple``): the least common target
    that works, each round lasting at least as long as the longest sequence that is left; then
    targets of single rounds are changed while the sum falls. ``ValueError`` where a sequence
    exceeds a micro-batch.
    """
    filler = _RoundsFiller(micro_batch, sequences, ranks)
    fewest = fewest_rounds(micro_batch, sequences, ranks)
    first = ceil(fewest / multiple) * multiple
    best: _Filled | None = None
    bounds: list[float] = []
    number = first
    while len(bounds) <= EXTRA_ROUNDS or best is None:
        bound = rounds_bound_ms(micro_batch, sequences, ranks, number)
        bounds.append(bound)
        if best is None or bound < best.total_ms:
            start = filler.common_target(number, bound)
            if start is not None and (best is None or start.total_ms < best.total_ms):
                best = filler.improved(start, bound)
        number += multiple
    # Every plan with more rounds than were tried costs at least its work and their overhead.
    bounds.append(rounds_bound_ms(micro_batch, sequences, ranks, number))
    return best.rounds(), min(*bounds, best.total_ms)


@dataclass(frozen=True)
class _Filled:
    """Rounds filled to targets (ms): placements, still packed perhaps, and times."""

    targets_ms: tuple[float, ...]
    placements: tuple[ClassPlacement | PackedPlacement, ...]
    times_ms: tuple[float, ...]

    @property
    def total_ms(self) -> float:
        return sum(self.times_ms)

    def rounds(self) -> Rounds:
        unpacked = [
            placement.unpack() if isinstance(placement, PackedPlacement) else placement
            for placement in self.placements
        ]
        return Rounds(
            tuple(
                tuple(pipeline[0] if pipeline else [] for pipeline in placement)
                for placement in unpacked
            ),
            self.times_ms,
        )


class _RoundsFiller:
    """Fills rounds one after another, each to a target: longest sequences first, then what fits."""

    def __init__(self, micro_batch: PipelineClass, sequences: Sequences, ranks: int) -> None:
        self._class = replace(micro_batch, count=ranks)
        self._sequences = sequences
        work = micro_batch.work_ms(sequences.lengths)
        self._alone_ms: list[float] = (work + micro_batch.c).tolist()
        self._area_ms = float(work @ sequences.counts) / ranks

    def fill(self, targets_ms: Sequence[float]) -> _Filled | None:
        """Fill rounds with these targets, each raised to the longest sequence that is left.

        None where sequences are left.
        """
        fill = unassigned(self._sequences.lengths, self._sequences.counts, [self._class])
        targets, overheads = [], []
        for target in targets_ms:
            if not fill.left:
                break
            longest = int(np.argmax(np.asarray(fill.counts) > 0))
            reached = max(target, self._alone_ms[longest])
            targets.append(reached)
            overheads.append(self._fill_round(fill, reached))
        if fill.left:
            return None
        placements: list[ClassPlacement | PackedPlacement] = []
        times = []
        of_rounds: Sequence[_OfRound] = fill.placements()
        for (placement, of_ranks), overhead in zip(of_rounds, overheads, strict=True):
            placements.append(placement)
            times.append(max(of_ranks) - overhead + self._class.c)
        return _Filled(tuple(targets), tuple(placements), tuple(times))

    def _fill_round(self, fill: PythonFill | KernelFill, target_ms: float) -> float:
        """Fill one micro-batch a rank; the overhead that was counted for each (ms).

        It is large enough that no second one fits beside the first.
        """
        work = (target_ms - self._class.c) * _ROUND
        overhead = 2 * work + 1
        micro_batch = replace(self._class, c=overhead)
        reach = self._class.capacity
        fill.fill_class(micro_batch, reach, 0, overhead + work, overhead + work, False)
        return overhead

    def common_target(self, rounds: int, bound_ms: float) -> _Filled | None:
        """Find the least common target for which ``rounds`` rounds hold all; None without one."""
        low = self._area_ms / rounds + self._class.c
        low, target, step = low * 0.5, low, 0.02
        best = None
        while best is None:
            best = self.fill([target] * rounds)
            if best is None:
                if step > 64:
                    return None
                low, target, step = target, target * (1 + step), step * 2
        high = target
        while high - low > TOLERANCE * high and best.total_ms > bound_ms * (1 + TOLERANCE):
            middle = (low + high) / 2
            filled = self.fill([middle] * rounds)
            if filled is None:
                low = middle
            else:
                high = middle
                best = filled if filled.total_ms < best.total_ms else best
        return best

    def improved(self, start: _Filled, bound_ms: float) -> _Filled:
        """Change one round's target, later ones in common, while the sum of the rounds falls."""
        best = start
        most = max(2, TRIED_FILLS // len(start.times_ms))
        tried = 0
        for _ in range(PASSES):
            before = best.total_ms
            for r in range(len(best.times_ms) - 1):
                for factor in FACTORS:
                    tried += 1
                    if best.total_ms <= bound_ms * (1 + GOOD) or tried > most:
                        return best
                    if r >= len(best.times_ms) - 1:
                        break
                    fixed = [*best.times_ms[:r], best.times_ms[r] * factor]
                    best = self._least_rest(fixed, best)
            if best.total_ms > before * (1 - TOLERANCE):
                break
        return best

    def _least_rest(self, fixed: Sequence[float], best: _Filled) -> _Filled:
        """Give rounds after ``fixed`` the least common target; the better of them and ``best``."""
        rest = len(best.times_ms) - len(fixed)
        high = (best.total_ms - sum(fixed)) / rest
        if high <= self._class.c:
            return best
        filled = self.fill([*fixed, *[high] * rest])
        if filled is None or filled.total_ms >= best.total_ms:
            return best
        best, low = filled, self._class.c
        while high - low > 4 * TOLERANCE * high:
            middle = (low + high) / 2
            filled = self.fill([*fixed, *[middle] * rest])
            if filled is None:
                low = middle
            else:
                high = middle
                best = filled if filled.total_ms < best.total_ms else best
        return best
