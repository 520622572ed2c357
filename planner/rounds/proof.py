"""A bound on all round plans that keeps what a long round cannot give to the others.

``rounds_bound_ms`` lets work flow between rounds. But a round that one long sequence stretches can
not be filled with short ones where memory is tight: tokens per GPU and round are about the same for
every degree. Here each round has its own length, tokens and groups.

For rounds of lengths t₁ ≥ t₂ ≥ … a linear program spreads groups of similar lengths over rounds
and degrees, with fractional numbers of sequence-parallel groups: each holds work for its round less
the overhead, tokens for its memory, one sequence above half of either, and all groups of a round
fit the GPUs. If that is infeasible for the largest lengths of a cell of (t₁, …, t_R₋₁) and the last
round as long as the total leaves, no plan with rounds in this cell is below the total. Cells that
are feasible are halved (branch and bound) down to ``FINEST``.

What refutes is checked apart from the solver: its duals are made feasible by construction, and the
value that they give is computed anew (``_certified``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.resources import ROUNDING
from seqplan.planner.placement.fleet import Floats, PipelineClass
from seqplan.planner.rounds.plan_rounds import Rounds, fewest_rounds, rounds_bound_ms

MOST_ROUNDS = 3
"""Rounds up to which cells are searched; plans of more keep the bound of ``rounds_bound_ms``."""

MOST_GROUPS = 40
"""Groups of similar lengths in a program; each counts as its shortest."""

FINEST, TOLERANCE = 4e-3, 2e-3
"""Width of a cell that is halved no more, and of the bisection for the total; of the total."""

RESOURCES = 4
"""Work, tokens, and the places for sequences above half of either."""

Slot = tuple[int, int]
"""A round's number and a class."""

MOST_PROGRAMS = 400
"""Programs for one total; beyond, it counts as not refuted."""


def prove_rounds(rounds: Rounds, batch: Batch, gpus: int) -> Rounds:
    """Return the rounds with the larger of their bound and the one proven here (seconds)."""
    proof = _Proof(rounds.classes, batch, gpus)
    bound = proof.bound_ms(rounds.lower_bound_ms, rounds.objective_ms)
    return Rounds(rounds.classes, rounds.schemes, rounds.rounds, bound)


@dataclass(frozen=True)
class _Proof:
    classes: Sequence[PipelineClass]
    batch: Batch
    gpus: int

    @cached_property
    def lengths(self) -> tuple[Floats, Floats]:
        """Shortest lengths of the groups, and how many sequences each has."""
        distinct, counts = self.batch.distinct[::-1], self.batch.multiplicity[::-1].astype(float)
        edges = np.unique(np.linspace(0, len(distinct), MOST_GROUPS + 1).round().astype(int))
        starts, stops = edges[:-1], edges[1:]
        shortest = np.array([distinct[start] for start in starts], dtype=np.int64)
        number = [counts[a:b].sum() for a, b in zip(starts, stops, strict=True)]
        return shortest.astype(float), np.array(number)

    def bound_ms(self, low_ms: float, reached_ms: float) -> float:
        """Prove a bound over all numbers of rounds, between a known one and a time reached (ms)."""
        fewest = fewest_rounds(self.classes, self.batch, self.gpus)
        least = reached_ms
        for count in range(fewest, fewest + MOST_ROUNDS + 1):
            at_least = rounds_bound_ms(self.classes, self.batch, self.gpus, count)
            if at_least >= least:
                break  # so do all plans of more rounds
            if count > MOST_ROUNDS:
                least = min(least, at_least)
                break
            least = min(least, self._of_count_ms(count, at_least, least))
        return max(low_ms, min(least, reached_ms))

    def _of_count_ms(self, count: int, low_ms: float, high_ms: float) -> float:
        """Bisect for the largest total (ms) that no plan of ``count`` rounds stays below."""
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

    def _refuted(self, count: int, total_ms: float) -> bool:
        """Whether no plan of ``count`` rounds, the longest first, takes at most ``total_ms``."""
        least = min(pipeline_class.c for pipeline_class in self.classes)
        cell = [(max(least, total_ms / count), total_ms - (count - 1) * least)]
        cell += [(least, total_ms / (place + 1)) for place in range(1, count - 1)]
        cells: list[tuple[tuple[float, float], ...]] = [tuple(cell) if count > 1 else ()]
        for _ in range(MOST_PROGRAMS):
            if not cells:
                return True
            here = cells.pop()
            last = total_ms - sum(low for low, _ in here)
            tops = [high for _, high in here]
            tops.append(min([last, *tops[-1:]]))
            if last < least or self._infeasible(tops):
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

    def _infeasible(self, round_ms: Sequence[float]) -> bool:
        """Whether rounds of these lengths cannot hold the batch, proven by the program's duals."""
        shares = {
            (number, k): share
            for number, length_ms in enumerate(round_ms)
            for k, pipeline_class in enumerate(self.classes)
            if (share := self._shares(pipeline_class, length_ms)) is not None
        }
        fits = [np.isfinite(share[0]) for share in shares.values()]
        if not fits or not np.logical_or.reduce(fits).all():
            return True  # a length that no round and degree takes
        prices = self._prices(shares, len(round_ms))
        if prices is None:
            return False
        mixes = dict(zip(shares, prices[: -len(round_ms)].reshape(-1, RESOURCES), strict=True))
        return self._certified(shares, mixes, prices[-len(round_ms) :]) > 1 + ROUNDING

    def _prices(self, shares: Mapping[Slot, Floats], rounds: int) -> Floats | None:
        """Solve the program; its duals for each slot's resources, then for each round's GPUs.

        None where the batch fits. Columns: sequences of each group in each slot that takes them,
        groups of ranks of each slot, and how often over the GPUs are needed, which is minimised.
        """
        from scipy.optimize import linprog
        from scipy.sparse import block_array, coo_matrix, csr_matrix

        taken = [np.flatnonzero(np.isfinite(share[0])) for share in shares.values()]
        placed, slots, groups = sum(map(len, taken)), len(shares), len(self.lengths[0])
        columns = np.arange(placed)
        slot_of = np.repeat(np.arange(slots), [len(group) for group in taken])
        group_of = np.concatenate(taken)
        used = np.concatenate(
            [s[:, g] for s, g in zip(shares.values(), taken, strict=True)], axis=1
        )
        resource_rows = (RESOURCES * slot_of + np.arange(RESOURCES)[:, None]).ravel()
        sequences = coo_matrix(
            (used.ravel(), (resource_rows, np.tile(columns, RESOURCES))),
            shape=(RESOURCES * slots, placed),
        )
        held = coo_matrix(
            (
                -np.ones(RESOURCES * slots),
                (np.arange(RESOURCES * slots), np.repeat(np.arange(slots), RESOURCES)),
            )
        )
        sizes = [float(self.classes[k].gpus) for _, k in shares]
        gpus = coo_matrix(
            (sizes, ([number for number, _ in shares], np.arange(slots))), shape=(rounds, slots)
        )
        over = csr_matrix(np.full((rounds, 1), -float(self.gpus)))
        solved = linprog(
            np.append(np.zeros(placed + slots), 1.0),
            A_ub=block_array([[sequences, held, None], [None, gpus, over]], format="csr"),
            b_ub=np.zeros(RESOURCES * slots + rounds),
            A_eq=coo_matrix(
                (np.ones(placed), (group_of, columns)), shape=(groups, placed + slots + 1)
            ).tocsr(),
            b_eq=self.lengths[1],
            method="highs",
        )
        if solved.status != 0 or solved.fun <= 1:
            return None
        prices: Floats = np.maximum(0.0, -np.asarray(solved.ineqlin.marginals))
        return prices

    def _certified(
        self, shares: Mapping[Slot, Floats], mixes: Mapping[Slot, Floats], round_prices: Floats
    ) -> float:
        """Compute how often over the GPUs are needed at least, at any prices.

        A GPU of round r costs λ_r with Σ λ_r·N = 1, and a group of class k so gpus_k·λ_r; its four
        resources are priced by a mix that sums to at most that. A sequence is then worth at most
        the least of what it takes of a group's resources anywhere, and all sequences together
        cannot be worth more than the GPUs cost, which is 1.
        """
        if not round_prices.sum() > 0:
            return 0.0
        prices = round_prices / (round_prices.sum() * self.gpus)
        worth = np.full(len(self.lengths[0]), np.inf)
        for (number, k), share in shares.items():
            cost = self.classes[k].gpus * prices[number]
            mix = mixes[number, k]
            mix = mix * (cost / mix.sum()) if mix.sum() > 0 else np.eye(RESOURCES)[0] * cost
            fits = np.isfinite(share[0])
            worth[fits] = np.minimum(worth[fits], mix @ share[:, fits])
        return float(worth @ self.lengths[1]) * (1 - ROUNDING)

    def _shares(self, pipeline_class: PipelineClass, round_ms: float) -> Floats | None:
        """Compute what a sequence of each group takes of one group of ranks: (4, groups).

        Work, tokens, and of the places for sequences above half of either; infinite where it does
        not fit. None where nothing does.
        """
        lengths = self.lengths[0].astype(np.int64)
        room = round_ms - pipeline_class.c
        if room <= 0:
            return None
        work = pipeline_class.work_ms(lengths) / room
        tokens = pipeline_class.padded(lengths) / pipeline_class.capacity
        share = np.stack([work, tokens, (tokens > 0.5).astype(float), (work > 0.5).astype(float)])
        fits = (work <= 1 + ROUNDING) & (tokens <= 1)
        return np.where(fits, share, np.inf) if fits.any() else None
