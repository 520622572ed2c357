"""Resources of a pipeline by a time and the shares of sequences in them: terms of every bound.

A pipeline that ends by τ runs some number V of micro-batches; M is the work of the largest. Then
Σ(a·l² + b·l) + V·c + λ·(M + c) ≤ τ, whatever the order is, for λ = ``least_bubbles``, and also for
the larger μ of V (``bubbles_by_number``) and the mean work in place of M. Without stages, or if
forward takes half of the time, λ is 0. With β = τ/(V + λ) − c a pipeline is in one of two kinds of
states.

*Even*, one state for each V: M ≤ β, or λ = 0. It limits

- work: Σ(a·l² + b·l) ≤ V·(τ/(V + μ) − c), at λ = 0 that is τ − c·V; no sequence has more work
  than β (τ − c·V);
- tokens: Σ padded lengths ≤ V·MaxLen;
- large items, the simplest of Martello and Toth's dual feasible functions: a micro-batch holds at
  most one sequence above half of MaxLen, and at most one with more than half the work of a
  micro-batch (at λ = 0: of the pipeline).

The largest V that is distinguished stands for itself and every larger one: it offers the most work
and tokens that any of them can use, and its large items are not limited.

A micro-batch with recomputation modes has one of them. A sequence has at least the work of its
cheapest mode, a micro-batch at least the least c and at most the largest MaxLen. As these minima
are of different modes, such classes have one more resource, in which they are joint:

- cost: Σ min over modes of (work + padded·c/MaxLen) ≤ τ·V/(V + μ).

At most t = τ/(V + λ) is left for a micro-batch, and it is in one mode m. So Σ s_m ≤ 1 in it,
for s_m = padded/MaxLen if short sequences of MaxLen tokens take less than t − c of mode m, else
s_m = work/(t − c). Finer bounds (``SHARES_OF_MODES``) have it as a last resource of classes
with bubbles:

- micro-batches: Σ min over modes of s_m ≤ V, and in the states that stand for several V, with the
  largest t, Σ min over modes of (work + c·s_m) ≤ their time.

At λ = 0, up to ``MIXED`` micro-batches are of one of few choices of modes. For prices p_m ≥ 0 of a
token of MaxLen, those of a choice with k_m of each mode take Σ (work + padded·p) ≤ τ − Σ k_m·c_m +
Σ k_m·MaxLen_m·p_m. The share of a sequence, in the place of its tokens, is the least over all
choices and their modes. Any prices are valid; ``shares_of_all_micro_batches`` has close ones.

*Peaked*, one state for each level of M: M > β, as when one long sequence is longer than an even
micro-batch. For M in [low, high) what remains for work and micro-batches, whatever V is, is
E = τ − λ·(low + c). V is at least 2, tokens/MaxLen, and the number of sequences above half
of MaxLen or of ``high``; each of these, times c, and the work together are at most E. The work
alone is also at most what the c and the bubbles, of M or of the mean, leave of any number of
micro-batches.

A pipeline that is known to run a sequence of some length or more is in one of the states in which
such a sequence can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations_with_replacement

import numpy as np
import numpy.typing as npt

from seqplan.planner.bounds.share_terms import ShareTerms
from seqplan.planner.placement.fleet import MOST, ClassMode, Floats, Ints, PipelineClass

RESOURCES = 4
"""Work, tokens, sequences with a large work, sequences with a large length."""

SHARES_OF_MODES = RESOURCES + 1
"""Place of the resource that counts micro-batches by mode, in finer bounds alone."""

MIXED = 2
"""Micro-batches of which all modes are distinguished, without bubbles."""

LARGEST_SHARE = 2.0
"""Shares are cut to this, so that a mode without time left makes no infinite ones."""


def count_resources(classes: Sequence[PipelineClass], *, fine: bool = False) -> int:
    """Count the resources of these classes: more if a class has recomputation modes."""
    modes = any(pipeline_class.modes for pipeline_class in classes)
    return RESOURCES + modes * (1 + fine)


ROUNDING = 1e-9
"""Relative margin against rounding: a refutation must clear it."""


@dataclass(frozen=True)
class ClassLengths:
    """Properties of ``lengths`` on a class that do not depend on the time.

    ``lengths``: descending, from the longest of the batch, of ``counts`` sequences each;
    ``levels``: of the peaked states (lengths in tokens), from 0, ascending; ``number``: of
    resources.
    """

    pipeline_class: PipelineClass
    lengths: Ints
    counts: Floats | Ints
    levels: Ints
    number: int = RESOURCES

    @cached_property
    def work(self) -> Floats:
        """Return the work of each length (ms)."""
        return self.pipeline_class.work_ms(self.lengths)

    @cached_property
    def alone_ms(self) -> Floats:
        """Return how long each length alone takes through all stages."""
        return self.pipeline_class.alone_ms(self.lengths)

    @cached_property
    def cost(self) -> Floats:
        """Return the least work of each length with its tokens' share of c (ms)."""
        return self.pipeline_class.work_with_overhead_ms(self.lengths)

    @cached_property
    def padded(self) -> Ints:
        """Return each length padded (tokens)."""
        return self.pipeline_class.padded(self.lengths)

    @cached_property
    def most_padded_per_work(self) -> float:
        """Return the padded tokens per ms of work of the length with most of them."""
        return float((self.padded / self.work).max())

    @cached_property
    def large(self) -> npt.NDArray[np.bool_]:
        """Return which lengths, padded, are above half of MaxLen."""
        return 2 * self.padded > self.pipeline_class.capacity

    @cached_property
    def held(self) -> npt.NDArray[np.bool_]:
        """Return which lengths, padded, are within MaxLen."""
        return self.padded <= self.pipeline_class.capacity

    @cached_property
    def properties(self) -> Floats:
        """Return work, padded tokens, if those are large, and cost (4, n)."""
        rows = [self.work, self.padded, self.large, self.cost]
        return np.stack(rows).astype(np.float64)

    @cached_property
    def level_works(self) -> tuple[Floats, Floats]:
        """Return the works (ms) at which the levels begin and end; the last has no end."""
        starts = self.pipeline_class.work_ms(self.levels)
        return starts, np.append(starts[1:], np.inf)

    @cached_property
    def below_level_ends(self) -> npt.NDArray[np.bool_]:
        """Return which lengths have less work than the level's end (levels, n)."""
        return self.work < self.level_works[1][:, None]

    def shares_of_micro_batch(self, micro_batch_ms: float) -> Floats:
        """Compute each length's least share of a micro-batch of at most so long (n,)."""
        shares = self.pipeline_class.least_over_modes(
            self.lengths,
            lambda mode, length, padded: _share_of_mode(mode, length, padded, micro_batch_ms),
        )
        return np.minimum(shares, LARGEST_SHARE)

    def cost_in_micro_batch(self, micro_batch_ms: float) -> Floats:
        """Compute each length's least work and share of c (ms), as ``shares_of_micro_batch``."""
        return self.pipeline_class.least_over_modes(
            self.lengths,
            lambda mode, length, padded: (
                length * (mode.a * length + mode.b)
                + mode.c
                * np.minimum(_share_of_mode(mode, length, padded, micro_batch_ms), LARGEST_SHARE)
            ),
        )

    @cached_property
    def work_by_mode(self) -> Floats:
        """Return the work of each length in each mode (modes, n) in ms."""
        lengths = self.lengths.astype(np.float64)
        modes = self.pipeline_class.all_modes
        return np.stack([lengths * (mode.a * lengths + mode.b) for mode in modes])

    @cached_property
    def work_per_token(self) -> Floats:
        """Return the mean work of a padded token in each mode (modes,) in ms."""
        held = self.held_by_mode * self.counts
        work, tokens = (held * self.work_by_mode).sum(axis=1), (held * self.padded).sum(axis=1)
        return np.asarray(work / np.maximum(tokens, 1.0))

    @cached_property
    def held_by_mode(self) -> npt.NDArray[np.bool_]:
        """Return which lengths, padded, each mode holds (modes, n)."""
        capacity = np.array([mode.capacity for mode in self.pipeline_class.all_modes])
        return self.padded <= capacity[:, None]

    def shares_of_all_micro_batches(self, micro_batches: int, time_ms: float) -> Floats:
        """Compute each length's least share (n,) over all modes that so many can have.

        Of micro-batches that run one after another within the time.
        """
        modes = self.pipeline_class.all_modes
        overhead, capacity = (np.array([getattr(m, x) for m in modes]) for x in ("c", "capacity"))
        per_token = self.work_per_token
        counts = _choose_modes(micro_batches, len(modes))
        left = time_ms - counts @ overhead
        counts, left = counts[left > 0], left[left > 0]
        if not len(counts):
            return np.full(len(self.lengths), LARGEST_SHARE)
        held = counts * capacity
        # Mean sequences fill the modes from the one of the least work on, until time is out.
        order = np.argsort(per_token, kind="stable")
        ends = np.cumsum((held * per_token)[:, order], axis=1) >= left[:, None]
        in_time = ends.any(axis=1)
        last = per_token[order[np.argmax(ends, axis=1)]]
        price = np.where(in_time[:, None], np.maximum(last[:, None] - per_token, 0.0), 1.0)
        offered = in_time * left + (price * held).sum(axis=1)
        taken = in_time[:, None, None] * self.work_by_mode + price[..., None] * self.padded
        taken[~((counts > 0)[..., None] & self.held_by_mode)] = np.inf
        least: Floats = (taken.min(axis=1) / offered[:, None]).min(axis=0)
        return np.minimum(least, LARGEST_SHARE)

    def shares(
        self, micro_batches: Ints, time_ms: float, weights: Floats | None = None
    ) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Compute each length's shares in the class's states at τ = ``time_ms``.

        Even states for each V in ``micro_batches``, ascending; the last stands for all that are at
        least as large and must be no less than ``most_micro_batches``, beyond which a larger V
        offers no more work. At pp > 1 peaked states follow, for M between the works of consecutive
        levels; the last has no upper end.

        Returns (states, resources, n): the part of what one pipeline offers that each sequence
        takes; those of a pipeline's sequences sum to at most 1. With ``weights`` (states, mixes,
        resources), their sums (states, mixes, n). Then (states, n): whether the sequence can be in
        such a pipeline at all.
        """
        terms, eligible = _describe_even(self, micro_batches, time_ms)
        of_states = [(terms, eligible)]
        if self.pipeline_class.least_bubbles:
            of_states.append(_describe_peaked(self, int(micro_batches[-1]), time_ms))
        if weights is None:
            shares = [of_state.by_resource(self.properties) for of_state, _ in of_states]
        else:
            parts = weights[: len(micro_batches)], weights[len(micro_batches) :]
            pairs = zip(of_states, parts, strict=False)  # without bubbles the second is empty
            shares = [of_state.weigh(self.properties, part) for (of_state, _), part in pairs]
        eligible = np.concatenate([e for _, e in of_states])
        return np.concatenate(shares), self._restrict(eligible, time_ms)

    def _restrict(self, eligible: npt.NDArray[np.bool_], time_ms: float) -> npt.NDArray[np.bool_]:
        """Restrict eligibility (states, n) to the lengths and states that the class admits."""
        eligible &= self.held
        if self.pipeline_class.pp > 1:  # a sequence passes all stages
            eligible &= self.alone_ms <= time_ms * (1 + ROUNDING)
        if self.pipeline_class.shorter_than:
            eligible &= self.lengths < self.pipeline_class.shorter_than
        if self.pipeline_class.runs_from:
            long = max(int((self.lengths >= self.pipeline_class.runs_from).sum()), 1)
            eligible &= eligible[:, :long].any(axis=1, keepdims=True)
        return eligible


@cache
def _choose_modes(micro_batches: int, modes: int) -> Ints:
    """List how many of so many micro-batches can have each mode (choices, modes)."""
    choices = combinations_with_replacement(range(modes), micro_batches)
    return np.array([np.bincount(chosen, minlength=modes) for chosen in choices])


def _share_of_mode(mode: ClassMode, lengths: Floats, padded: Ints, time_ms: float) -> Floats:
    """Compute shares in a micro-batch of a mode, of at most a time (ms)."""
    left_ms = time_ms - mode.c
    if mode.b * mode.capacity < left_ms:
        return padded / mode.capacity
    return lengths * (mode.a * lengths + mode.b) / max(left_ms, ROUNDING)


def _describe_even(
    of_class: ClassLengths, micro_batches: Ints, time_ms: float
) -> tuple[ShareTerms, npt.NDArray[np.bool_]]:
    """Describe the even states, and eligibility (states, n) by work alone."""
    staged = of_class.pipeline_class.least_bubbles > 0
    v = micro_batches.astype(np.float64)
    budget, offered, large, tokens = _offer_even(of_class, micro_batches, time_ms)
    coefficients = np.zeros((len(v), of_class.number, len(of_class.properties)))
    coefficients[:, 0, 0] = 1 / np.maximum(offered, 1e-12)
    coefficients[:, 1, 1] = 1 / tokens
    coefficients[:-1, 3, 2] = 1 / v[:-1]
    of_large_work = 1 / large
    of_large_work[-1] = 0.0
    of_modes = []
    if of_class.number > RESOURCES:
        bubbles = of_class.pipeline_class.bubbles_by_number[0][micro_batches - 1]
        offered_cost = time_ms * v / (v + bubbles)
        offered_cost[-1] = time_ms
        coefficients[:, 4, 3] = 1 / offered_cost
        if of_class.number > SHARES_OF_MODES and not staged:
            coefficients[:, SHARES_OF_MODES] = coefficients[:, 4]
        elif of_class.number > SHARES_OF_MODES:
            longest_ms = time_ms / (v + of_class.pipeline_class.least_bubbles)
            shares = [
                of_class.shares_of_micro_batch(ms) / k for k, ms in zip(v, longest_ms, strict=True)
            ]
            shares[-1] = of_class.cost_in_micro_batch(longest_ms[-1]) / time_ms
            of_modes += [(state, SHARES_OF_MODES, share) for state, share in enumerate(shares)]
    if not staged and of_class.pipeline_class.modes:
        for state in np.flatnonzero(micro_batches[:-1] <= MIXED).tolist():
            coefficients[state, 1] = 0.0
            of_modes.append(
                (state, 1, of_class.shares_of_all_micro_batches(int(v[state]), time_ms))
            )
    large_work = of_class.work > budget[:, None] * (0.5 + ROUNDING)
    eligible = of_class.work <= budget[:, None] * (1 + ROUNDING)
    return ShareTerms(coefficients, of_large_work, large_work, of_modes), eligible


def _offer_even(
    of_class: ClassLengths, micro_batches: Ints, time_ms: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return what even states offer (states,).

    Work of a micro-batch (ms), of all (ms), micro-batches of a large work, and tokens.
    """
    pipeline_class = of_class.pipeline_class
    v = micro_batches.astype(np.float64)
    if not pipeline_class.least_bubbles:
        # Of a pipeline, shared by its micro-batches.
        budget = np.maximum(time_ms - pipeline_class.least_c * v, 0.0)
        offered, large = budget.copy(), np.ones_like(v)
    else:
        # β, of each micro-batch, and what so many have on average.
        bubbles = pipeline_class.bubbles_by_number[0][micro_batches - 1]
        bubbles[-1] = pipeline_class.least_bubbles  # of all larger V
        budget, mean = (
            np.maximum(time_ms / (v + of_v) - pipeline_class.least_c, 0.0)
            for of_v in (pipeline_class.least_bubbles, bubbles)
        )
        offered, large = v * mean, v
    if v[-1] >= MOST and pipeline_class.least_bubbles:  # the V of the most work may lie beyond
        offered[-1] = max(offered[-1], _most_work_ms(pipeline_class, time_ms))
    tokens = v * pipeline_class.capacity
    # Padding may take many more tokens than a larger V's work suggests: as many as fit its work.
    tokens[-1] = max(tokens[-1], offered[-1] * of_class.most_padded_per_work)
    return budget, offered, large, tokens


def _most_work_ms(pipeline_class: PipelineClass, time_ms: float) -> float:
    """Bound the work of even micro-batches over all V, with bubbles (ms).

    Its maximum over real numbers is (√τ − √(λ·c))².
    """
    root = time_ms**0.5 - (pipeline_class.least_bubbles * pipeline_class.least_c) ** 0.5
    return float(max(root, 0.0) ** 2)


def _describe_peaked(
    of_class: ClassLengths, most: int, time_ms: float
) -> tuple[ShareTerms, npt.NDArray[np.bool_]]:
    """Describe the peaked states, and eligibility (levels, n) by work alone."""
    pipeline_class = of_class.pipeline_class
    bubbles = pipeline_class.least_bubbles
    # Up to the work of the last even state nothing is peaked that this state would not cover.
    covered = max(time_ms / (most + bubbles) - pipeline_class.least_c, 0.0)
    starts, high = of_class.level_works
    low = np.maximum(starts, covered)
    left = np.maximum(time_ms - bubbles * (low + pipeline_class.least_c), 0.0)
    # A larger M also means V > τ/(M + c) − λ; the rest for work is then most at the M of the
    # best even V, or at the end of the level that is nearest to it.
    even = (time_ms * pipeline_class.least_c / bubbles) ** 0.5 - pipeline_class.least_c
    best = np.minimum(np.maximum(even, low), np.maximum(low, high))
    offered = np.maximum(
        best * (time_ms / np.maximum(best + pipeline_class.least_c, 1e-300) - bubbles), 0.0
    )
    c, v = pipeline_class.least_c, np.arange(2, MOST + 2)
    of_mean, of_largest = (of_v[1 : MOST + 1].copy() for of_v in pipeline_class.bubbles_by_number)
    of_mean[-1], of_largest[-1] = 0.0, bubbles  # of all larger V
    idle_ms = np.maximum(of_largest * (low + c)[:, None], time_ms * of_mean / (v + of_mean))
    offered = np.minimum(offered, np.maximum(time_ms - (idle_ms + c * v).min(axis=1), 0.0))
    eligible = of_class.work <= offered[:, None] * (1 + ROUNDING)
    eligible &= of_class.below_level_ends
    eligible &= (high > covered)[:, None]
    # Of the rest, work and a c each: for the part of MaxLen taken, a large work, a large length.
    rest = 1 / np.maximum(left, 1e-12)
    coefficients = np.zeros((len(low), of_class.number, len(of_class.properties)))
    coefficients[:, 0, 0] = 1 / np.maximum(offered, 1e-12)
    coefficients[:, (1, *range(RESOURCES, of_class.number)), 3] = rest[:, None]
    coefficients[:, 2:4, 0] = rest[:, None]
    coefficients[:, 3, 2] = rest * pipeline_class.least_c
    of_modes = []
    if of_class.number > SHARES_OF_MODES:
        coefficients[:, SHARES_OF_MODES] = 0.0
        of_modes = [
            (level, SHARES_OF_MODES, of_class.cost_in_micro_batch(longest_ms) * rest[level])
            for level, longest_ms in enumerate(high + pipeline_class.least_c)
        ]
    large_work = of_class.work >= high[:, None] * (0.5 + ROUNDING)
    return ShareTerms(coefficients, rest * pipeline_class.least_c, large_work, of_modes), eligible
