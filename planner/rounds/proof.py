"""A bound on all round plans that keeps what a long round cannot give to the others.

``rounds_bound_ms`` lets work flow between rounds. But a round that one long sequence stretches can
not be filled with short ones where memory is tight: tokens per GPU and round are about the same for
every degree. Here rounds have their own lengths, tokens and groups.

For rounds of lengths t₁ ≥ t₂ ≥ …, of which the longest counts once more for each further stage
that they go through, a linear program spreads groups of similar lengths over rounds
and degrees, with fractional numbers of sequence-parallel groups: each holds work for its round less
the overhead, tokens for its memory, one sequence above half of either, and all groups of a round
fit the GPUs. Of plans with more than ``HEADS`` + 1 rounds only the longest ``HEADS`` are told
apart; the others are one pool of any number of rounds, which share its time. If the program is
infeasible for the largest lengths of a cell of (t₁, t₂) and all the time that is left, no plan with
rounds in this cell is below the total. Cells that are feasible are halved (branch and bound) down
to ``FINEST``.

What refutes is checked apart from the solver: its duals are made feasible by construction, and the
values that they give are computed anew (``_certified``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.resources import ROUNDING
from seqplan.planner.placement.fleet import Floats, Ints, PipelineClass
from seqplan.planner.rounds.plan_rounds import Rounds
from seqplan.planner.rounds.round_bounds import fewest_rounds, rounds_bound_ms

HEADS = 2
"""Rounds whose lengths are told apart in plans of more rounds than one more than these."""

ALONE, MOST_GROUPS = 24, 32
"""The longest lengths, each a group of its own, and groups of similar ones among the others; each
counts as its shortest."""

NEAR = 0.02
"""The gap below which no closer bound is sought."""

FINEST, TOLERANCE = 4e-3, 2e-3
"""Width of a cell that is halved no more, and of the bisection for the total; of the total."""

RESOURCES = 4
"""Work, tokens, and the places for sequences above half of either."""

Slot = tuple[int, int]
"""A round's number and a class."""

MOST_PROGRAMS = 150
"""Programs for one total; beyond, it counts as not refuted."""


def prove_rounds(rounds: Rounds, batch: Batch) -> Rounds:
    """Return the rounds with the larger of their bound and the one proven here (seconds).

    Unchanged where they are within ``NEAR`` of their bound already.
    """
    if rounds.objective_ms <= rounds.lower_bound_ms * (1 + NEAR):
        return rounds
    proof = _Proof(rounds.bounded, batch, rounds.ranks, rounds.stages)
    return rounds.bounded_by(proof.bound_ms(rounds.lower_bound_ms, rounds.objective_ms))


@dataclass(frozen=True)
class _Program:
    """What sequences take where: ``shares`` (resources, groups) by slot, the last round's included.

    ``rounds``: how many come before the last, whose lengths are given; ``pool``: the time of all
    others and how many they are at least, None where there is one.
    """

    shares: Mapping[Slot, Floats]
    rounds: int
    pool: tuple[float, int] | None

    def in_pool(self, slot: Slot) -> bool:
        """Whether a slot is of the pool of rounds."""
        return self.pool is not None and slot[0] == self.rounds


def _summing_to(mix: Floats, total: float) -> Floats:
    """Scale prices to a sum, all of it on the first where they are zero."""
    if mix.sum() > 0:
        scaled: Floats = mix * (total / mix.sum())
        return scaled
    first: Floats = np.eye(len(mix))[0] * total
    return first


@dataclass(frozen=True)
class _Proof:
    classes: Sequence[PipelineClass]
    batch: Batch
    gpus: int
    stages: int

    @cached_property
    def lengths(self) -> tuple[Ints, Floats]:
        """Shortest lengths of the groups, and how many sequences each has."""
        distinct, counts = self.batch.distinct[::-1], self.batch.multiplicity[::-1].astype(float)
        others = max(0, len(distinct) - ALONE)
        edges = np.unique(
            np.concatenate(
                [
                    np.linspace(0, others, MOST_GROUPS + 1).round().astype(int),
                    np.arange(others, len(distinct) + 1),
                ]
            )
        )
        starts, stops = edges[:-1], edges[1:]
        shortest = np.array([distinct[start] for start in starts], dtype=np.int64)
        number = [counts[a:b].sum() for a, b in zip(starts, stops, strict=True)]
        return shortest, np.array(number)

    def bound_ms(self, low_ms: float, reached_ms: float) -> float:
        """Prove a bound over all numbers of rounds, between a known one and a time reached (ms)."""
        fewest = self.fewest
        least = reached_ms
        for count in range(min(fewest, HEADS + 2), HEADS + 3):
            at_least = rounds_bound_ms(
                self.classes, self.batch, self.gpus, max(fewest, count), self.stages
            )
            if at_least >= least:
                break  # so do all plans of more rounds
            least = min(least, self._of_count_ms(count, at_least, least))
        return max(low_ms, min(least, reached_ms))

    def _of_count_ms(self, count: int, low_ms: float, high_ms: float) -> float:
        """Bisect for the largest total (ms) that no plan of ``count`` rounds stays below.

        Above ``HEADS`` + 1 of that many or more.
        """
        if self._refuted(count, high_ms):
            return high_ms
        low, high = low_ms, high_ms
        while high - low > TOLERANCE * high:
            middle = (low + high) / 2
            if self._refuted(count, middle):
                low = middle
            else:
                high = middle
        return low

    @cached_property
    def fewest(self) -> int:
        """The fewest rounds that any plan has."""
        return fewest_rounds(self.classes, self.batch, self.gpus)

    @cached_property
    def overhead_ms(self) -> float:
        """The least that a round takes."""
        return min(pipeline_class.c for pipeline_class in self.classes)

    def _refuted(self, count: int, total_ms: float) -> bool:
        """Whether no plan of ``count`` rounds, the longest first, takes at most ``total_ms``.

        A plan that takes less is refuted with it: its rounds may last longer, up to the total.
        """
        least, heads = self.overhead_ms, min(count - 1, HEADS)
        fewest = self.fewest if count > HEADS + 1 else count
        # The longest round counts ``stages`` times.
        cell = [(least, total_ms / (place + self.stages)) for place in range(heads)]
        if cell:
            mean = total_ms / (count + self.stages - 1) if count <= HEADS + 1 else 0.0
            cell[0] = (max(mean, least), (total_ms - (count - 1) * least) / self.stages)
        cells = [tuple(cell)]
        for _ in range(MOST_PROGRAMS):
            if not cells:
                return True
            here = cells.pop()
            lows = [low for low, _ in here]
            drained = (self.stages - 1) * lows[0] if lows else 0.0
            left = total_ms - sum(lows) - drained if lows else total_ms / self.stages
            tops = [high for _, high in here]
            if (
                left <= 0
                or left < least
                or self._infeasible(tops, left, max(count, fewest) - heads)
            ):
                continue
            widths = [high - low for low, high in here]
            if not widths or max(widths) <= FINEST * total_ms:
                return False
            at = widths.index(max(widths))
            low, high = here[at]
            middle = (low + high) / 2
            for part in ((low, middle), (middle, high)):
                cells.append((*here[:at], part, *here[at + 1 :]))
        return False

    def _infeasible(self, heads_ms: Sequence[float], left_ms: float, others: int) -> bool:
        """Whether such rounds cannot hold the batch, proven by the program's duals.

        ``heads_ms``: the longest of each of the first rounds; ``left_ms``: for all others, of which
        there are ``others``, or, where those are more than one, at least so many.
        """
        longest = min([left_ms - (others - 1) * self.overhead_ms, *heads_ms[-1:]])
        pooled = others > 1
        shares = {
            (number, k): share
            for number, length_ms in enumerate([*heads_ms, longest])
            for k, pipeline_class in enumerate(self.classes)
            if (share := self._shares(pipeline_class, length_ms)) is not None
        }
        if pooled:
            for k, pipeline_class in enumerate(self.classes):
                if (share := shares.get((len(heads_ms), k))) is not None:
                    share[0] *= (longest - pipeline_class.c) / left_ms
        fits = [np.isfinite(share[0]) for share in shares.values()]
        if not fits or not np.logical_or.reduce(fits).all():
            return True  # a length that no round and degree takes
        program = _Program(shares, len(heads_ms), (left_ms, others) if pooled else None)
        prices = self._prices(program)
        if prices is None:
            return False
        worth, capacity = self._certified(program, prices)
        return worth * (1 - ROUNDING) > capacity * (1 + ROUNDING)

    def _prices(self, program: _Program) -> Floats | None:
        """Solve the program; its duals by row, those of the GPUs last. None where the batch fits.

        Columns: sequences of each group in each slot that takes them; groups of ranks of each
        slot; in the pool their work and the number of rounds, too; and the sequences left over,
        whose work is minimised.
        """
        from scipy.optimize import linprog
        from scipy.sparse import lil_matrix

        slots, (shortest, number) = list(program.shares), self.lengths
        taken = [np.flatnonzero(np.isfinite(share[0])) for share in program.shares.values()]
        starts = np.cumsum([0, *map(len, taken)])
        held, pool = int(starts[-1]), program.pool
        pooled = [place for place, slot in enumerate(slots) if program.in_pool(slot)]
        work_columns = {place: held + len(slots) + n for n, place in enumerate(pooled)}
        rounds_column = held + len(slots) + len(pooled)
        over = rounds_column + (pool is not None)
        rows = RESOURCES * len(slots) + program.rounds + (2 if pool else 1)
        bounds = lil_matrix((rows, over + len(shortest)))
        limits = np.zeros(rows)
        for place, (slot, groups) in enumerate(zip(slots, taken, strict=True)):
            columns = range(starts[place], starts[place + 1])
            for resource in range(RESOURCES):
                row = RESOURCES * place + resource
                bounds[row, columns] = program.shares[slot][resource][groups]
                is_work = resource == 0 and place in work_columns
                bounds[row, work_columns[place] if is_work else held + place] = -1.0
            gpus = float(self.classes[slot[1]].gpus)
            bounds[RESOURCES * len(slots) + slot[0], held + place] = gpus
            if place in work_columns:
                bounds[rows - 1, work_columns[place]] = gpus
        limits[RESOURCES * len(slots) :] = self.gpus
        least_rounds = 0
        if pool is not None:
            # Its work is in units of what all rounds of the pool hold without overhead.
            left_ms, least_rounds = pool
            bounds[rows - 2, rounds_column] = -float(self.gpus)
            limits[rows - 2] = 0.0
            bounds[rows - 1, rounds_column] = self.gpus * self.overhead_ms / left_ms
        everywhere = lil_matrix((len(shortest), over + len(shortest)))
        for place, groups in enumerate(taken):
            everywhere[groups, np.arange(starts[place], starts[place + 1])] = 1.0
        everywhere[range(len(shortest)), range(over, over + len(shortest))] = 1.0
        cheapest = np.min([c.gpus * c.work_ms(shortest) for c in self.classes], axis=0)
        objective = np.zeros(over + len(shortest))
        objective[over:] = cheapest / (cheapest @ number)
        lower = np.zeros(over + len(shortest))
        if pool is not None:
            lower[rounds_column] = least_rounds
        solved = linprog(
            objective,
            A_ub=bounds.tocsr(),
            b_ub=limits,
            A_eq=everywhere.tocsr(),
            b_eq=number,
            bounds=np.stack([lower, np.full_like(lower, np.inf)], axis=1),
            method="highs",
        )
        if solved.status != 0 or solved.fun <= 1e-7:
            return None
        prices: Floats = np.maximum(0.0, -np.asarray(solved.ineqlin.marginals))
        return prices

    def _certified(self, program: _Program, prices: Floats) -> tuple[float, float]:
        """Compute what all sequences are worth at least, and the GPUs at most, at any prices.

        A GPU of round r costs λ_r, and a group of class k so gpus_k·λ_r; its four resources are
        priced by a mix that sums to at most that. In the pool a GPU costs ν in each round and μ for
        all the time, and a group's work is priced by the one, the others by the other. A sequence
        is worth the least of what it takes of a group's resources anywhere. If all together are
        worth more than the GPUs cost, they do not fit. The pool's ρ rounds cost
        N·(μ·(1 − ρ·overhead/time) + ν·ρ), which is largest at the fewest or the most of them.
        """
        slots = len(program.shares)
        by_round = prices[RESOURCES * slots : RESOURCES * slots + program.rounds + 1]
        pool = program.pool
        time_price = float(prices[-1]) if pool else 0.0
        worth = np.full(len(self.lengths[0]), np.inf)
        for place, (slot, share) in enumerate(program.shares.items()):
            gpus = self.classes[slot[1]].gpus
            mix = prices[RESOURCES * place : RESOURCES * (place + 1)].copy()
            if program.in_pool(slot):
                mix[0] = gpus * time_price
                mix[1:] = _summing_to(mix[1:], gpus * by_round[slot[0]])
            else:
                mix = _summing_to(mix, gpus * by_round[slot[0]])
            fits = np.isfinite(share[0])
            worth[fits] = np.minimum(worth[fits], mix @ share[:, fits])
        capacity = float(by_round[: program.rounds].sum())
        if pool is None:
            capacity += float(by_round[-1])
        else:
            left_ms, fewest = pool
            overhead = self.overhead_ms / left_ms
            most = 1 / overhead if overhead > 0 else np.inf
            round_price = float(by_round[-1])
            few = time_price * (1 - fewest * overhead) + round_price * fewest
            many = round_price * most if round_price > 0 else 0.0
            capacity += max(few, many)
        return float(worth @ self.lengths[1]), capacity * self.gpus

    def _shares(self, pipeline_class: PipelineClass, round_ms: float) -> Floats | None:
        """Compute what a sequence of each group takes of one group of ranks: (4, groups).

        Work, tokens, and of the places for sequences above half of either; infinite where it does
        not fit. None where nothing does.
        """
        lengths = self.lengths[0]
        room = round_ms - pipeline_class.c
        if room <= 0:
            return None
        work = pipeline_class.work_ms(lengths) / room
        tokens = pipeline_class.padded(lengths) / pipeline_class.capacity
        share = np.stack([work, tokens, (tokens > 0.5).astype(float), (work > 0.5).astype(float)])
        fits = (work <= 1 + ROUNDING) & (tokens <= 1)
        return np.where(fits, share, np.inf) if fits.any() else None
