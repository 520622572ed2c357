"""Resources of a pipeline by a time and the shares of sequences in them: terms of every bound.

A pipeline that ends by τ runs some number V of micro-batches; M is the work of the largest. Form S
is at most τ exactly if Σ(a·l² + b·l) + V·c + (pp − 1)·(M + c) ≤ τ. With β = τ/(V + pp − 1) − c, the
work of each if all were equal, a pipeline is in one of two kinds of states.

*Even*, one state for each V: M ≤ β, or one stage. It limits

- work: Σ(a·l² + b·l) ≤ V·β, at pp = 1 that is τ − c·V; no sequence has more work than β (τ − c·V);
- tokens: Σ padded lengths ≤ V·MaxLen;
- large items, the simplest of Martello and Toth's dual feasible functions: a micro-batch holds at
  most one sequence above half of MaxLen, and at most one with more than half the work of a
  micro-batch (at pp = 1: of the pipeline).

The largest V that is distinguished stands for itself and every larger one: it offers the most work
and tokens that any of them can use, and its large items are not limited.

A micro-batch with recomputation modes has one of them. A sequence has at least the work of its
cheapest mode, a micro-batch at least the least c and at most the largest MaxLen. As these minima
are of different modes, such classes have one more resource, in which they are joint:

- cost: Σ min over modes of (work + padded·c/MaxLen) ≤ τ·V/(V + pp − 1), as the largest cost is no
  less than the mean.

At most t = τ/(V + pp − 1) is left for a micro-batch, and it is in one mode m. So Σ s_m ≤ 1 in it,
for s_m = padded/MaxLen if short sequences of MaxLen tokens take less than t − c of mode m, else
s_m = work/(t − c). At pp = 1 that limits the tokens of the state V = 1, as s_m is no less than
their share of the largest MaxLen. Finer bounds (``SHARES_OF_MODES``) have it as a last resource of
classes with stages:

- micro-batches: Σ min over modes of s_m ≤ V, and in the states that stand for several V, with the
  largest t, Σ min over modes of (work + c·s_m) ≤ their time.

*Peaked*, one state for each level of M: M > β, as when one long sequence is longer than an even
micro-batch. For M in [low, high) what remains for work and micro-batches, whatever V is, is
E = τ − (pp − 1)·(low + c). V is at least 2, tokens/MaxLen, and the number of sequences above half
of MaxLen or of ``high``; each of these, times c, and the work together are at most E.

A pipeline that is known to run a sequence of some length or more is in one of the states in which
such a sequence can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from seqplan.planner.placement.fleet import MOST, ClassMode, Floats, Ints, PipelineClass

RESOURCES = 4
"""Work, tokens, sequences with a large work, sequences with a large length."""

SHARES_OF_MODES = RESOURCES + 1
"""Place of the resource that counts micro-batches by mode, in finer bounds alone."""

LARGEST_SHARE = 2.0
"""Shares are cut to this, so that a mode without time left makes no infinite ones."""


def count_resources(classes: Sequence[PipelineClass], *, fine: bool = False) -> int:
    """Count the resources of these classes: more if a class has recomputation modes."""
    modes = any(pipeline_class.modes for pipeline_class in classes)
    return RESOURCES + modes * (1 + fine)


ROUNDING = 1e-9
"""Relative margin against rounding: a refutation must clear it."""


@dataclass(frozen=True)
class Resources:
    """Resources of one class at a time τ, for some states of a pipeline.

    ``share`` (states, RESOURCES, n): the part of what one pipeline offers that each sequence takes;
    the shares of a pipeline's sequences sum to at most 1 for each resource.
    ``eligible`` (states, n): whether the sequence can be in such a pipeline at all.
    """

    share: Floats
    eligible: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ClassLengths:
    """Properties of ``lengths`` on a class that do not depend on the time.

    ``levels``: of the peaked states (lengths in tokens), from 0, ascending; ``number``: of
    resources. ``lengths``: descending, from the longest of the batch.
    """

    pipeline_class: PipelineClass
    lengths: Ints
    levels: Ints
    number: int = RESOURCES

    @cached_property
    def work(self) -> Floats:
        """Return the work of each length (ms)."""
        return self.pipeline_class.work_ms(self.lengths)

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
        """Return work, padded tokens, if those are large, and any cost (3 or 4, n)."""
        rows = [self.work, self.padded, self.large]
        return np.stack([*rows, self.cost] if self.number > RESOURCES else rows).astype(np.float64)

    @cached_property
    def level_works(self) -> tuple[Floats, Floats]:
        """Return the works (ms) at which the levels begin and end; the last has no end."""
        starts = self.pipeline_class.work_ms(self.levels)
        return starts, np.append(starts[1:], np.inf)

    @cached_property
    def below_level_ends(self) -> npt.NDArray[np.bool_]:
        """Return which lengths have less work than the level's end (levels, n)."""
        return self.work < self.level_works[1][:, None]

    @cached_property
    def work_and_counted(self) -> Floats:
        """Return each length's shares in the rest next to a peak (levels, 3, n).

        In ms: its work, and a c for the part of MaxLen that it takes, for a large work and a large
        length.
        """
        counted = np.empty((len(self.levels), 3, len(self.lengths)))
        counted[:, 0] = self.padded / self.pipeline_class.capacity
        counted[:, 1] = self.work >= self.level_works[1][:, None] * (0.5 + ROUNDING)
        counted[:, 2] = self.large
        taken = self.work + self.pipeline_class.least_c * counted
        if self.pipeline_class.modes:
            taken[:, 0] = self.cost
        return taken

    def shares_of_modes(self, micro_batch_ms: float) -> Floats:
        """Compute each length's least share of a micro-batch of at most so long (n,)."""
        shares = self.pipeline_class.least_over_modes(
            self.lengths,
            lambda mode, length, padded: _share_of_mode(mode, length, padded, micro_batch_ms),
        )
        return np.minimum(shares, LARGEST_SHARE)

    def cost_of_modes(self, micro_batch_ms: float) -> Floats:
        """Compute each length's least work and share of c (ms), as ``shares_of_modes``."""
        return self.pipeline_class.least_over_modes(
            self.lengths,
            lambda mode, length, padded: (
                length * (mode.a * length + mode.b)
                + mode.c
                * np.minimum(_share_of_mode(mode, length, padded, micro_batch_ms), LARGEST_SHARE)
            ),
        )

    def has_single(self, micro_batches: Ints) -> bool:
        """Whether the first even state is of one micro-batch, which takes the pipeline's time."""
        alone = int(micro_batches[0]) == 1 < len(micro_batches)
        return alone and self.pipeline_class.pp == 1 and self.number > RESOURCES

    def resources(self, micro_batches: Ints, time_ms: float) -> Resources:
        """Describe the class's states at τ = ``time_ms``: even ones and, at pp > 1, peaked ones.

        Even states for each V in ``micro_batches``, ascending; the last stands for all that are at
        least as large and must be no less than ``most_micro_batches``, beyond which a larger V
        offers no more work. Peaked states for M between the works of consecutive levels; the last
        has no upper end.
        """
        even = len(micro_batches)
        states = even if self.pipeline_class.pp == 1 else even + len(self.levels)
        share = np.empty((states, self.number, len(self.lengths)))
        eligible = np.empty((states, len(self.lengths)), dtype=np.bool_)
        _even(self, micro_batches, time_ms, share[:even], eligible[:even])
        if states > even:
            _fill_peaked(self, int(micro_batches[-1]), time_ms, share[even:], eligible[even:])
        return Resources(share, self._restrict(eligible))

    def weigh(
        self, micro_batches: Ints, time_ms: float, weights: Floats
    ) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Sum the shares of ``resources`` at weights (states, mixes, resources).

        Returns (states, mixes, n), and eligibility (states, n). A share is a sum of few properties
        of a length at coefficients of the state, so that one product of matrices does.
        """
        if self.number > SHARES_OF_MODES:
            available = self.resources(micro_batches, time_ms)
            return weights @ available.share, available.eligible
        even = len(micro_batches)
        states, mixes = weights.shape[:2]
        of_properties = np.zeros((states, mixes, len(self.properties)))
        of_large_work = np.empty((states, mixes))
        eligible = np.empty((states, len(self.lengths)), dtype=np.bool_)
        large_work = np.empty_like(eligible)
        budget, offered, large, tokens = _offer_even(self, micro_batches, time_ms)
        v = micro_batches.astype(np.float64)
        np.less_equal(self.work, budget[:, None] * (1 + ROUNDING), out=eligible[:even])
        np.greater(self.work, budget[:, None] * (0.5 + ROUNDING), out=large_work[:even])
        part, into = weights[:even], of_properties[:even]
        into[..., 0] = part[..., 0] / np.maximum(offered, 1e-12)[:, None]
        into[..., 1] = part[..., 1] / tokens[:, None]
        single = self.has_single(micro_batches)
        into[:single, :, 1] = 0.0
        into[:-1, :, 2] = part[:-1, :, 3] / v[:-1, None]
        of_large_work[:even] = part[..., 2] / large[:, None]
        of_large_work[even - 1] = 0.0
        if self.number > RESOURCES:
            into[..., 3] = part[..., 4] / _offer_cost_ms(self, v, time_ms)[:, None]
        if states > even:
            pipeline_class, part, into = self.pipeline_class, weights[even:], of_properties[even:]
            offered, left = _offer_peaked(self, int(micro_batches[-1]), time_ms, eligible[even:])
            np.greater_equal(
                self.work, self.level_works[1][:, None] * (0.5 + ROUNDING), out=large_work[even:]
            )
            rest = part[..., 1:] / left[:, None, None]
            in_tokens = rest[..., 0] + rest[..., 3] if self.number > RESOURCES else rest[..., 0]
            into[..., 0] = part[..., 0] / offered[:, None] + rest[..., 1] + rest[..., 2]
            into[..., 2] = rest[..., 2] * pipeline_class.least_c
            of_large_work[even:] = rest[..., 1] * pipeline_class.least_c
            if pipeline_class.modes:
                into[..., 3] = in_tokens
            else:
                into[..., 0] += in_tokens
                into[..., 1] = in_tokens * (pipeline_class.least_c / pipeline_class.capacity)
        shape = states, mixes, len(self.lengths)
        share = (of_properties.reshape(states * mixes, -1) @ self.properties).reshape(shape)
        if single:
            share[0] += weights[0, :, 1, None] * self.shares_of_modes(time_ms)
        for mix in np.flatnonzero(of_large_work.any(axis=0)):
            share[:, mix] += of_large_work[:, mix, None] * large_work
        return share, self._restrict(eligible)

    def _restrict(self, eligible: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Restrict eligibility (states, n) to the lengths and states that the class admits."""
        eligible &= self.held
        if self.pipeline_class.shorter_than:
            eligible &= self.lengths < self.pipeline_class.shorter_than
        if self.pipeline_class.runs_from:
            long = max(int((self.lengths >= self.pipeline_class.runs_from).sum()), 1)
            eligible &= eligible[:, :long].any(axis=1, keepdims=True)
        return eligible


def _share_of_mode(mode: ClassMode, lengths: Floats, padded: Ints, time_ms: float) -> Floats:
    """Compute shares in a micro-batch of a mode, of at most a time (ms)."""
    left_ms = time_ms - mode.c
    if mode.b * mode.capacity < left_ms:
        return padded / mode.capacity
    return lengths * (mode.a * lengths + mode.b) / max(left_ms, ROUNDING)


def _even(
    of_class: ClassLengths,
    micro_batches: Ints,
    time_ms: float,
    share: Floats,
    eligible: npt.NDArray[np.bool_],
) -> None:
    """Fill in the even states; ``eligible`` by their work alone."""
    pipeline_class = of_class.pipeline_class
    v = micro_batches.astype(np.float64)
    budget, offered, large, tokens = _offer_even(of_class, micro_batches, time_ms)
    work, padded = of_class.work, of_class.padded
    np.less_equal(work, budget[:, None] * (1 + ROUNDING), out=eligible)
    np.divide(work, np.maximum(offered, 1e-12)[:, None], out=share[:, 0])
    np.divide(padded, tokens[:, None], out=share[:, 1])
    if of_class.has_single(micro_batches):
        share[0, 1] = of_class.shares_of_modes(time_ms)
    np.divide(work > budget[:, None] * (0.5 + ROUNDING), large[:, None], out=share[:, 2])
    np.divide(of_class.large, v[:, None], out=share[:, 3])
    share[-1, 2:] = 0.0
    if of_class.number > RESOURCES:
        np.divide(of_class.cost, _offer_cost_ms(of_class, v, time_ms)[:, None], out=share[:, 4])
        if of_class.number > SHARES_OF_MODES:
            share[:, SHARES_OF_MODES] = share[:, 4]
            if pipeline_class.pp > 1:
                longest_ms = time_ms / (v + pipeline_class.pp - 1)
                for state, (number, each_ms) in enumerate(zip(v[:-1], longest_ms, strict=False)):
                    share[state, SHARES_OF_MODES] = of_class.shares_of_modes(each_ms) / number
                share[-1, SHARES_OF_MODES] = of_class.cost_of_modes(longest_ms[-1]) / time_ms


def _offer_even(
    of_class: ClassLengths, micro_batches: Ints, time_ms: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return what even states offer (states,).

    Work of a micro-batch (ms), of all (ms), micro-batches of a large work, and tokens.
    """
    pipeline_class = of_class.pipeline_class
    v = micro_batches.astype(np.float64)
    if pipeline_class.pp == 1:
        # Of a pipeline, shared by its micro-batches.
        budget = np.maximum(time_ms - pipeline_class.least_c * v, 0.0)
        offered, large = budget.copy(), np.ones_like(v)
    else:
        # β, of each micro-batch.
        budget = np.maximum(time_ms / (v + pipeline_class.pp - 1) - pipeline_class.least_c, 0.0)
        offered, large = v * budget, v
    if v[-1] >= MOST and pipeline_class.pp > 1:  # the V of the most work may lie beyond
        offered[-1] = max(offered[-1], _most_work_ms(pipeline_class, time_ms))
    tokens = v * pipeline_class.capacity
    # Padding may take many more tokens than a larger V's work suggests: as many as fit its work.
    tokens[-1] = max(tokens[-1], offered[-1] * of_class.most_padded_per_work)
    return budget, offered, large, tokens


def _offer_cost_ms(of_class: ClassLengths, v: Floats, time_ms: float) -> Floats:
    """Return the cost that even states of ``v`` micro-batches offer (ms), (states,)."""
    whole: Floats = time_ms * v / (v + of_class.pipeline_class.pp - 1)
    whole[-1] = time_ms
    return whole


def _most_work_ms(pipeline_class: PipelineClass, time_ms: float) -> float:
    """Bound V·β over all V, at pp > 1 (ms).

    Its maximum over real numbers is (√τ − √((pp − 1)·c))².
    """
    root = time_ms**0.5 - ((pipeline_class.pp - 1) * pipeline_class.least_c) ** 0.5
    return float(max(root, 0.0) ** 2)


def _fill_peaked(
    of_class: ClassLengths,
    most: int,
    time_ms: float,
    share: Floats,
    eligible: npt.NDArray[np.bool_],
) -> None:
    """Fill in the peaked states; ``eligible`` by their work alone."""
    offered, left = _offer_peaked(of_class, most, time_ms, eligible)
    np.divide(of_class.work, offered[:, None], out=share[:, 0])
    np.divide(of_class.work_and_counted, left[:, None, None], out=share[:, 1:4])
    if of_class.number > RESOURCES:
        share[:, 4] = share[:, 1]
        if of_class.number > SHARES_OF_MODES:
            high = of_class.level_works[1]
            for level, longest_ms in enumerate(high + of_class.pipeline_class.least_c):
                share[level, SHARES_OF_MODES] = of_class.cost_of_modes(longest_ms) / left[level]


def _offer_peaked(
    of_class: ClassLengths, most: int, time_ms: float, eligible: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Return the work and the rest that peaked states offer (ms), (levels,); as ``_fill_peaked``.

    ``eligible`` is filled in.
    """
    pipeline_class = of_class.pipeline_class
    bubbles = pipeline_class.pp - 1
    # Up to β of the last even state nothing is peaked that this state would not cover.
    covered = max(time_ms / (most + bubbles) - pipeline_class.least_c, 0.0)
    starts, high = of_class.level_works
    low = np.maximum(starts, covered)
    left = np.maximum(time_ms - bubbles * (low + pipeline_class.least_c), 0.0)
    # M > β also means V > τ/(M + c) − (pp − 1); the rest for work is then most at the M of the
    # best even V, or at the end of the level that is nearest to it.
    even = (time_ms * pipeline_class.least_c / bubbles) ** 0.5 - pipeline_class.least_c
    best = np.minimum(np.maximum(even, low), np.maximum(low, high))
    offered = np.maximum(
        best * (time_ms / np.maximum(best + pipeline_class.least_c, 1e-300) - bubbles), 0.0
    )
    offered = np.minimum(offered, left - 2 * pipeline_class.least_c)
    work = of_class.work
    np.less_equal(work, offered[:, None] * (1 + ROUNDING), out=eligible)
    eligible &= of_class.below_level_ends
    eligible &= (high > covered)[:, None]
    return np.maximum(offered, 1e-12), np.maximum(left, 1e-12)
