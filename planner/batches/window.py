"""Windows of steps whose outliers are put together: few steps are long instead of many.

A sequence that alone takes longer than a step needs on average leaves GPUs idle in its step. Within
a window of steps such outliers are swapped into the steps that one of them bounds anyway, each
against random short sequences of as many tokens. Nothing else moves: a step keeps its tokens and
every sequence is used once an epoch, at most a window early or late. Only the company changes:
sequences of one step are then less similar from step to step than random ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice, pairwise

import numpy as np
import numpy.typing as npt

from seqplan.planner.argument_checks import read_whole_number
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import Sampler, SamplerState

OUTLIER = 1.01
"""A sequence that alone takes this multiple of the window's mean step is an outlier."""

FULL = 0.985
"""A step takes outliers in until its work fills this share of its longest sequence's time."""

SIMILAR = (0.97, 1.002)
"""Tokens of the short sequences in a swap, as multiples of the outlier's: least and most."""

LONG_TOKENS = 0.1
"""The longest sequences that hold this share of a data set's tokens count as long in a report."""

MOST_WINDOW = 4096
"""Steps of a window at most: all of them are in memory."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SequenceCosts:
    """Costs of each sequence of the data set (arrays of its length).

    ``alone_ms``: alone, on the group that is fastest for it; ``area_ms``: its least GPU-time over
    all GPUs. ``short``: the longest that the smallest group holds (tokens).
    """

    alone_ms: Floats
    area_ms: Floats
    short: int


@dataclass(frozen=True)
class WindowReport:
    """What windows have moved so far, over ``steps`` steps.

    ``moved_tokens``: share of all tokens that run in another step than drawn; ``mean_delay`` and
    ``largest_delay`` in steps, early or late, of the sequences moved. ``long_spread``: standard
    deviation over steps of the share of tokens in long sequences, as drawn and composed.
    """

    steps: int
    moved_sequences: int
    moved_tokens: float
    mean_delay: float
    largest_delay: int
    long_spread: tuple[float, float]


class WindowSampler:
    """Draws steps as a sampler does and composes each ``window`` of them.

    Windows begin at steps that are multiples of ``window``, whatever step a run begins with, and a
    step that meets an epoch's end stays as drawn, so that none mixes epochs. Everything follows
    from the sampler, its seed, the costs and the window's number: a resumed run composes the window
    that it is in anew. ``ValueError`` for another window or costs of other sequences.
    """

    def __init__(self, sampler: Sampler, window: int, costs: SequenceCosts, seed: int) -> None:
        if not 1 <= window <= MOST_WINDOW:
            raise ValueError(f"a window has from 1 to {MOST_WINDOW} steps, not {window}. Change it")
        if len(costs.alone_ms) != len(sampler.lengths) or len(costs.area_ms) != len(
            sampler.lengths
        ):
            raise ValueError(
                "the costs are not those of the sampler's sequences"
                ". Give one cost for each sequence"
            )
        self._sampler, self._window, self._costs, self._seed = sampler, window, costs, seed
        self._moves: list[tuple[int, int]] = []
        """Of each sequence moved: its tokens, and by how many steps."""
        self._long_shares: list[tuple[float, float]] = []
        self._tokens = 0
        self._long = _long_length(sampler.lengths)

    def batches(self, steps: int | None = None) -> Iterator[Batch]:
        """Draw and compose the first ``steps`` steps, or steps without end when None."""
        composed = self.resume(0)
        return composed if steps is None else islice(composed, read_whole_number("steps", steps))

    def resume(self, step: int) -> Iterator[Batch]:
        """Draw and compose all steps from ``step`` on, as a whole run would.

        The state before the window that holds it is found through the steps before.
        """
        first = step - step % self._window
        return self._from(self._sampler.state_before(first), step)

    def report(self) -> WindowReport:
        """Describe the moves in the steps yielded so far."""
        delays = [abs(delay) for _, delay in self._moves]
        drawn, composed = np.array(self._long_shares or [(0.0, 0.0)]).std(axis=0).tolist()
        return WindowReport(
            steps=len(self._long_shares),
            moved_sequences=len(self._moves),
            moved_tokens=sum(tokens for tokens, _ in self._moves) / max(self._tokens, 1),
            mean_delay=sum(delays) / max(len(delays), 1),
            largest_delay=max(delays, default=0),
            long_spread=(drawn, composed),
        )

    def _from(self, state: SamplerState, step: int) -> Iterator[Batch]:
        drawn = self._sampler.resume(state)
        while True:
            window = list(islice(drawn, self._window))
            last = window[-1][0]
            states = [*(before for before, _ in window)]
            states.append(self._sampler.state_before(last.step + 1, last))
            epochs = [_only_epoch(before, after) for before, after in pairwise(states)]
            of_epochs = zip(epochs, (batch for _, batch in window), strict=True)
            for epoch, members in groupby(of_epochs, key=lambda entry: entry[0]):
                batches = [batch for _, batch in members]
                composed = batches if epoch is None else self._compose(batches, epoch)
                drawn_in = {i: batch.step for batch in batches for i in batch.ids}
                for before, batch in zip(batches, composed, strict=True):
                    if batch.step >= step:
                        self._count(before, batch, drawn_in)
                        yield batch

    def _compose(self, batches: Sequence[Batch], epoch: int) -> list[Batch]:
        """Compose the steps of a window that lie in one epoch."""
        number = batches[0].step // self._window
        random = np.random.default_rng([self._seed, epoch, number])
        lengths = self._sampler.lengths
        steps = [np.array(batch.ids, dtype=np.int64) for batch in batches]
        return [
            replace(batch, ids=tuple(ids.tolist()), lengths=tuple(lengths[ids].tolist()))
            for batch, ids in zip(
                batches, compose(steps, lengths, self._costs, random), strict=True
            )
        ]

    def _count(self, drawn: Batch, composed: Batch, drawn_in: Mapping[int, int]) -> None:
        """Count a step's sequences from other steps of its epoch in the window."""
        self._tokens += composed.tokens
        if composed is not drawn:
            for i, length in zip(composed.ids, composed.lengths, strict=True):
                if drawn_in[i] != composed.step:
                    self._moves.append((length, composed.step - drawn_in[i]))
        shares = [
            sum(length for length in batch.lengths if length >= self._long) / batch.tokens
            for batch in (drawn, composed)
        ]
        self._long_shares.append((shares[0], shares[1]))


def _only_epoch(before: SamplerState, after: SamplerState) -> int | None:
    """Return the epoch that a step lies in, None if it continues into the next."""
    ends = (after.epoch, after.cursor) == (before.epoch + 1, 0)
    return before.epoch if ends or after.epoch == before.epoch else None


def compose(
    steps: Sequence[Ints], lengths: Ints, costs: SequenceCosts, random: np.random.Generator
) -> list[Ints]:
    """Swap outliers between steps (ids, in drawn order) of one epoch; the steps' ids after it.

    Steps take outliers in, the one with the longest first; those that have done so give none away.
    """
    area = [float(costs.area_ms[ids].sum()) for ids in steps]
    limit = OUTLIER * float(np.mean(area))
    alone_ms = costs.alone_ms
    outliers = [
        sorted(ids[alone_ms[ids] > limit].tolist(), key=lambda i: (-alone_ms[i], i))
        for ids in steps
    ]
    members = [ids.tolist() for ids in steps]
    longest = [float(alone_ms[of_step[0]]) if of_step else 0.0 for of_step in outliers]
    givers = list(range(len(steps)))
    for host in sorted(range(len(steps)), key=lambda s: (-longest[s], s)):
        givers.remove(host)
        if not outliers[host]:
            break
        offered = [(-alone_ms[i], i, s) for s in givers for i in outliers[s]]
        for _, outlier, giver in sorted(offered):
            shorts = _as_many_tokens(members[host], outlier, lengths, costs, limit, random)
            if shorts is None:
                continue
            gained = float(costs.area_ms[outlier] - costs.area_ms[shorts].sum())
            if area[host] + gained > FULL * longest[host]:
                break
            leaving = set(shorts)
            members[host] = [*(i for i in members[host] if i not in leaving), outlier]
            members[giver] = [*(i for i in members[giver] if i != outlier), *shorts]
            outliers[giver].remove(outlier)
            area[host] += gained
            area[giver] -= gained
    return [np.array(ids, dtype=np.int64) for ids in members]


def _as_many_tokens(
    members: Sequence[int],
    outlier: int,
    lengths: Ints,
    costs: SequenceCosts,
    limit: float,
    random: np.random.Generator,
) -> list[int] | None:
    """Choose random short sequences of a step with about as many tokens as an outlier; or None."""
    ids = np.array(members, dtype=np.int64)
    ids = ids[(lengths[ids] <= costs.short) & (costs.alone_ms[ids] <= limit)]
    least, most = (share * int(lengths[outlier]) for share in SIMILAR)
    chosen: list[int] = []
    tokens = 0
    for i in random.permutation(ids).tolist():
        length = int(lengths[i])
        if tokens + length <= most:
            chosen.append(i)
            tokens += length
    return chosen if tokens >= least else None


def _long_length(lengths: Ints) -> int:
    """Find the length from which on sequences hold the ``LONG_TOKENS`` share of all tokens."""
    descending = np.sort(lengths)[::-1]
    within = np.cumsum(descending) <= LONG_TOKENS * descending.sum()
    return int(descending[max(int(within.sum()) - 1, 0)])
