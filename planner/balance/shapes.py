"""Micro-batches of few shapes: sizes chosen from a plan, and sequences exchanged to fill them.

Compiled kernels, captured graphs and allocators work once for each size. A micro-batch is padded to
the next shape; what it is filled with instead of padding comes from others, which then need a
smaller one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np

from seqplan.planner.balance.micro_batch_counts import MicroBatches
from seqplan.planner.placement.fleet import Ints

MOST_SIZES = 512
"""Distinct sizes that the program distinguishes; with more of them neighbors count as one."""

SLACK = 1e-3
"""Share of the tokens that shapes have room for beyond all of them."""

PASSES = 2
"""Times that sequences are exchanged, for the shapes that the pass before left."""

EXCHANGES = 4
"""Exchanges for each micro-batch that is too large, at most."""


KEPT = np.iinfo(np.int64).min
"""Excess of a micro-batch that no exchange makes smaller."""


def check_shapes(shapes: int | Sequence[int], longest: int, capacity: int) -> int | tuple[int, ...]:
    """Return the number of shapes, or their sizes, ascending.

    ``longest``: tokens of the longest sequence; ``capacity``: of a micro-batch. ``TypeError`` or
    ``ValueError`` for others than whole numbers, and for sizes that do not hold the longest
    sequence or exceed the capacity.
    """
    sizes = list(shapes) if isinstance(shapes, Iterable) else [shapes]
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int | np.integer):
            raise TypeError(f"shapes: {size!r}. Give their number, or tokens of each")
        if size < 1:
            raise ValueError(f"shapes: {size}. Give a whole number of 1 or more")
    if isinstance(shapes, int | np.integer):
        return int(shapes)
    if not sizes:
        raise ValueError("shapes: none. Give their number, or tokens of each")
    ordered = tuple(sorted({int(size) for size in sizes}))
    if ordered[-1] < longest:
        raise ValueError(
            f"shapes up to {ordered[-1]} tokens: a sequence has {longest}. Give one that holds it"
        )
    if ordered[-1] > capacity:
        raise ValueError(
            f"shape of {ordered[-1]} tokens: a micro-batch holds {capacity}. Leave it out or give "
            "more capacity"
        )
    return ordered


def choose_shapes(sizes: Sequence[int], number: int) -> tuple[int, ...]:
    """Choose so many shapes, or fewer, that sizes need the fewest tokens of padding.

    By dynamic programming over the distinct sizes: a shape is one of them, and those from the last
    smaller shape on are padded to it. Of more than ``MOST_SIZES`` distinct sizes, several in a row
    have the same shape.
    """
    distinct, counts = np.unique(np.asarray(sizes, dtype=np.int64), return_counts=True)
    if len(distinct) > MOST_SIZES:
        last = np.linspace(0, len(distinct) - 1, MOST_SIZES + 1).astype(int)[1:]
        counts = np.diff(np.concatenate([[0], np.cumsum(counts)[last]]))
        distinct = distinct[last]
    up_to = np.concatenate([[0], np.cumsum(counts)])
    n = len(distinct)
    least = np.full(n + 1, np.inf)  # tokens of the first sizes in so many shapes
    least[0] = 0.0
    before: list[list[int]] = []
    for _ in range(min(number, n)):
        chosen, fewer = [0], least
        least = np.full(n + 1, np.inf)
        for j in range(1, n + 1):
            tokens = fewer[:j] + float(distinct[j - 1]) * (up_to[j] - up_to[:j])
            place = int(tokens.argmin())
            chosen.append(place)
            least[j] = tokens[place]
        before.append(chosen)
    shapes, j = [], n
    for chosen in reversed(before):
        if j:
            shapes.append(int(distinct[j - 1]))
            j = chosen[j]
    return tuple(reversed(shapes))


def list_filled(
    parts: MicroBatches, tokens: Sequence[int], shapes: int | tuple[int, ...], capacity: int
) -> list[tuple[MicroBatches, tuple[int, ...]]]:
    """List ways to fill few shapes, of which one is best; the first only pads.

    ``tokens``: of each sequence, padded; ``shapes``: how many, or their sizes (``check_shapes``);
    ``capacity``: of a micro-batch. Each is micro-batches, and the shapes in use, ascending.
    """
    places = [(r, k) for r, of_rank in enumerate(parts) for k, m in enumerate(of_rank) if m]
    most = capacity if isinstance(shapes, int) else shapes[-1]
    state = _Sizes([parts[r][k] for r, k in places], tokens, most)
    ways = []
    for _ in range(1 + PASSES):
        in_use = choose_shapes(state.sizes.tolist(), shapes) if isinstance(shapes, int) else shapes
        filled: MicroBatches = [[[] for _ in of_rank] for of_rank in parts]
        for (r, k), micro in zip(places, state.contents(), strict=True):
            filled[r][k] = micro
        ways.append((filled, in_use))
        if isinstance(shapes, int):
            group = np.searchsorted(in_use, state.sizes)
            means = np.bincount(group, state.sizes) / np.maximum(np.bincount(group), 1)
            wanted = np.minimum(np.ceil(means * (1 + SLACK)), most).astype(np.int64)[group]
        else:
            wanted = _choose_nearest(state.sizes, shapes)
        state.even(wanted)
    return ways


def _choose_nearest(sizes: Ints, shapes: tuple[int, ...]) -> Ints:
    """Choose the nearest shape for each size, or larger ones until all tokens have room."""
    options = np.array(shapes, dtype=np.int64)
    place = np.abs(sizes[:, None] - options).argmin(axis=1)
    while options[place].sum() < (1 + SLACK) * sizes.sum() and place.min() < len(options) - 1:
        higher = np.minimum(place + 1, len(options) - 1)
        missing = np.where(higher > place, options[higher] - sizes, np.iinfo(np.int64).max)
        raised = int(missing.argmin())
        place[raised] = higher[raised]
    chosen: Ints = options[place]
    return chosen


class _Sizes:
    """Micro-batches as sets of sequences; ``sizes`` (micro-batches,) of ``most`` tokens at most."""

    def __init__(
        self, micro_batches: Sequence[Sequence[int]], tokens: Sequence[int], most: int
    ) -> None:
        self.most = most
        self.tokens: Ints = np.asarray(tokens, dtype=np.int64)
        self.owner: Ints = np.full(len(self.tokens), -1, dtype=np.int64)
        for place, micro in enumerate(micro_batches):
            self.owner[list(micro)] = place
        number = len(micro_batches)
        self.sizes: Ints = np.bincount(self.owner, self.tokens, number).astype(np.int64)
        self.counts: Ints = np.bincount(self.owner, minlength=number)

    def contents(self) -> list[list[int]]:
        """List the sequences of each micro-batch."""
        return [np.flatnonzero(self.owner == place).tolist() for place in range(len(self.sizes))]

    def even(self, wanted: Ints) -> None:
        """Move sequences from micro-batches above the ``wanted`` sizes to those below.

        The largest excess first: of all sequences that it may give, alone or for one in return,
        those after which the least is above its size. One that no exchange lowers keeps it.
        """
        excess = self.sizes - wanted
        for _ in range(EXCHANGES * len(wanted)):
            place = int(excess.argmax())
            if excess[place] <= 0:
                return
            if self._give(place, wanted):
                excess = np.where(excess == KEPT, KEPT, self.sizes - wanted)
            else:
                excess[place] = KEPT

    def _give(self, place: int, wanted: Ints) -> bool:
        """Make the exchange that leaves the least excess; False if none lowers it."""
        excess = int(self.sizes[place] - wanted[place])
        givers = np.flatnonzero(self.owner == place)
        room = np.maximum(wanted - self.sizes, 0)
        takers = np.flatnonzero(room[self.owner] > 0)
        others = np.flatnonzero(room)
        if not len(others):
            return False
        returned = np.concatenate([np.zeros(len(others), dtype=np.int64), self.tokens[takers]])
        target = np.concatenate([others, self.owner[takers]])
        given = self.tokens[givers][:, None] - returned[None]
        left = np.maximum(excess - given, 0) + np.maximum(given - room[target], 0)
        fits = (given > 0) & (self.sizes[target] + given <= self.most)
        left = np.where(fits, left, excess)
        if self.counts[place] == 1:
            left[:, : len(others)] = excess
        i, j = divmod(int(left.argmin()), left.shape[1])
        if left[i, j] >= excess:
            return False
        self._move(int(givers[i]), int(target[j]))
        if j >= len(others):
            self._move(int(takers[j - len(others)]), place)
        return True

    def _move(self, item: int, place: int) -> None:
        before = int(self.owner[item])
        for which, sign in ((before, -1), (place, 1)):
            self.sizes[which] += sign * int(self.tokens[item])
            self.counts[which] += sign
        self.owner[item] = place


def pad_to_shape(tokens: int, shapes: Sequence[int]) -> int:
    """Return the tokens of the least shape that holds so many."""
    return shapes[bisect_left(shapes, tokens)]
