"""Assigning items of several loads to slots, one for each rank and micro-step.

In every micro-step and phase all ranks wait for the slowest. An item has a load in each phase
(vision encoder, language model); a rank may be slower than others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from seqplan.planner.placement.fleet import Floats, Ints

Number = TypeVar("Number", np.int64, np.float64)

UNLIMITED = 2**46
"""Tokens of a slot that takes all: those of 65,536 ranks can be added up."""

CHUNKS = 8
"""Items that are assigned at a time, as a share of the slots: 1/8 (measured: like one by one)."""

CHANGES = 250_000
"""Moves and swaps times items: 64 for 4,096 items, 60 ms on 128 ranks; at least 64, at most 256."""

PARTNER_ITEMS = 128
"""Items, about, that the slowest slot may exchange: those of slots with the least load."""

CLOSED = 1e-3
"""Gap below which nothing more is changed."""

_GAIN = 1e-9
"""Least relative gain of a change."""


@dataclass(frozen=True)
class Items:
    """Items to assign: ``work_ms`` and ``tokens`` (n, phases), at the speed of a rank of 1.

    ``capacity`` (phases,): tokens of a slot. ``overhead_ms`` (phases,): of a slot with an item that
    has work in the phase. ``barrier``: ranks wait for each other after every phase, else after all.
    ``rank_of`` (n,): the rank on which each item stays; None if it may be on any.
    """

    work_ms: Floats
    tokens: Ints
    capacity: Ints
    overhead_ms: Floats
    barrier: bool = True
    rank_of: Ints | None = None

    def by_rank(self, ranks: int) -> list[Items]:
        """Return the items that stay on each rank."""
        return [
            replace(self, work_ms=self.work_ms[of], tokens=self.tokens[of], rank_of=None)
            for of in (self.rank_of == rank for rank in range(ranks))
        ]

    def between_waits(self, by_phase: Floats) -> Floats:
        """Sum times of phases, the last axis, that follow each other without a barrier."""
        summed: Floats = by_phase if self.barrier else by_phase.sum(axis=-1, keepdims=True)
        return summed

    def fewest_micro_steps(self, ranks: int) -> int:
        """Count the micro-steps that tokens, and items above half of a slot, need."""
        if self.rank_of is not None:
            return max(of_rank.fewest_micro_steps(1) for of_rank in self.by_rank(ranks))
        by_tokens = -(-self.tokens.sum(axis=0) // (self.capacity * ranks))
        large = (2 * self.tokens > self.capacity).sum(axis=0)
        return int(max(1, by_tokens.max(), (-(-large // ranks)).max()))


def bound_ms(items: Items, factors: Floats, micro_steps: int) -> float:
    """Bound every assignment to ``micro_steps`` or more (ms).

    In each phase all work is spread over the ranks by their speeds, with an overhead in every
    micro-step in which someone has work; and the largest item takes a fastest rank so long. Items
    that stay on their rank: no rank ends a phase sooner than it would alone.
    """
    if items.rank_of is None:
        waits_ms = _bound_waits_ms(items, factors, micro_steps)
    else:
        waits_ms = np.max(
            [
                _bound_waits_ms(of_rank, factors[[rank]], of_rank.fewest_micro_steps(1))
                for rank, of_rank in enumerate(items.by_rank(len(factors)))
            ],
            axis=0,
        )
    return float(waits_ms.sum()) * (1 - 1e-9)


def _bound_waits_ms(items: Items, factors: Floats, micro_steps: int) -> Floats:
    """Bound the time between waits, summed over micro-steps (ms)."""
    fastest, speed = float(factors.min()), float((1 / factors).sum())
    work_ms = items.between_waits(items.work_ms)
    if work_ms.shape[1] == 1:
        numbers = np.array([micro_steps])
        overhead_ms = np.array([items.overhead_ms.min()])
    else:
        # A phase has work in as many micro-steps as its tokens need, perhaps in no more.
        numbers = -(-items.tokens.sum(axis=0) // (items.capacity * len(factors)))
        overhead_ms = items.overhead_ms
    longest_ms = np.maximum(work_ms.sum(axis=0) / speed, fastest * work_ms.max(axis=0))
    waits_ms: Floats = longest_ms + numbers * fastest * overhead_ms
    return waits_ms


def assign_items(items: Items, factors: Floats, micro_steps: int) -> tuple[Ints, float] | None:
    """Assign each item to a slot, and time the micro-steps (ms).

    A slot is numbered micro-step · ranks + rank. ``factors`` (ranks,): how much slower each rank
    is. None if the items find no room.
    """
    state = _State(items, factors, micro_steps)
    if not state.fill():
        return None
    state.put_like_together()
    state.improve(bound_ms(items, factors, micro_steps))
    return state.owner, state.total_ms()


class _State:
    """Slots and their loads (slots, phases), by the speed of their rank."""

    def __init__(self, items: Items, factors: Floats, micro_steps: int) -> None:
        self.items, self.ranks, self.micro_steps = items, len(factors), micro_steps
        self.factors: Floats = np.tile(factors, micro_steps)
        slots, phases = len(self.factors), items.work_ms.shape[1]
        self.work_ms: Floats = np.zeros((slots, phases))
        self.tokens: Ints = np.zeros((slots, phases), dtype=np.int64)
        self.numbers: Ints = np.zeros((slots, phases), dtype=np.int64)
        self.owner: Ints = np.full(len(items.work_ms), -1, dtype=np.int64)
        self.has: Ints = (items.work_ms > 0).astype(np.int64)
        self.limited = bool((items.capacity < UNLIMITED).any())
        total = items.between_waits(items.work_ms).sum(axis=0)
        self.scale: Floats = 1 / np.where(total > 0, total, 1.0)

    def times_ms(self) -> Floats:
        """Time each slot between waits: (slots, phases), or (slots, 1) without a barrier."""
        overhead = np.where(self.numbers > 0, self.items.overhead_ms, 0.0)
        return self.items.between_waits((self.work_ms + overhead) * self.factors[:, None])

    def _share(self, work_ms: Floats) -> Floats:
        """Return work as a share of all work between two waits, (n, waits)."""
        return self.items.between_waits(work_ms) * self.scale

    def total_ms(self) -> float:
        """Sum the slowest slots of all micro-steps and phases."""
        by_step = self.times_ms().reshape(self.micro_steps, self.ranks, -1)
        return float(by_step.max(axis=1).sum())

    def fill(self) -> bool:
        """Assign all items, the largest first; False if one finds no room.

        Items of the same largest phase are taken together, one for each of the slots that have
        least load in it.
        """
        shares = self._share(self.items.work_ms)
        phase, size = shares.argmax(axis=1).tolist(), shares.max(axis=1)
        chunk = max(1, len(self.factors) // CHUNKS)
        waiting: list[list[int]] = [[] for _ in range(shares.shape[1])]
        for item in np.argsort(-size, kind="stable").tolist():
            of_phase = waiting[phase[item]]
            of_phase.append(item)
            if len(of_phase) == chunk:
                if not self._fill_chunk(of_phase, phase[item]):
                    return False
                of_phase.clear()
        return all(self._fill_chunk(of_phase, p) for p, of_phase in enumerate(waiting) if of_phase)

    def _fill_chunk(self, which: list[int], phase: int) -> bool:
        """Give each of some items, largest first, one of the slots with least load."""
        work, tokens, capacity = self.items.work_ms, self.items.tokens, self.items.capacity
        factors = self.factors[:, None]
        # Slow ranks count the largest item as well.
        largest = self._share(work[which[0]])[phase]
        loads = self._share(self.work_ms) * factors
        keys = loads[:, phase] + largest * self.factors + 1e-3 * loads.sum(axis=1)
        best = np.argsort(keys, kind="stable")[: len(which)]
        fixed = self.items.rank_of
        if fixed is None and (
            not self.limited or (self.tokens[best] + tokens[which] <= capacity).all()
        ):
            self._add(np.array(which), best)
            return True
        for item in which:
            room = (self.tokens + tokens[item] <= capacity).all(axis=1)
            if fixed is not None:
                room &= np.arange(len(room)) % self.ranks == fixed[item]
            if not room.any():
                return False
            loads = self._share(self.work_ms + work[item]) * factors
            keys = np.where(room, loads.max(axis=1) + 1e-3 * loads.sum(axis=1), np.inf)
            self._add(np.array([item]), np.array([int(keys.argmin())]))
        return True

    def _add(self, which: Ints, slots: Ints) -> None:
        self.work_ms[slots] += self.items.work_ms[which]
        self.tokens[slots] += self.items.tokens[which]
        self.numbers[slots] += self.has[which]
        self.owner[which] = slots

    def put_like_together(self) -> None:
        """Order slots by load, so that micro-steps have slots of like load.

        Those of all ranks of one speed, or of each rank if items stay on it.
        """
        loads = self._share(self.work_ms).max(axis=1).reshape(self.micro_steps, self.ranks)
        slots = np.arange(loads.size).reshape(loads.shape)
        place = np.empty(loads.size, dtype=np.int64)
        groups = self.factors[: self.ranks] if self.items.rank_of is None else slots[0]
        for of_ranks in (groups == one for one in np.unique(groups)):
            order = np.argsort(-loads[:, of_ranks].ravel(), kind="stable")
            mine = slots[:, of_ranks].ravel()
            place[mine[order]] = mine
        for array in (self.work_ms, self.tokens, self.numbers):
            array[place] = array.copy()
        self.owner = place[self.owner]

    def improve(self, bound: float) -> None:
        """Move and swap items out of the slowest slots, while the sum falls."""
        for _ in range(min(max(CHANGES // len(self.owner), 64), 256)):
            times = self.times_ms()
            by_step = times.reshape(self.micro_steps, self.ranks, -1)
            total = float(by_step.max(axis=1).sum())
            if total <= bound * (1 + CLOSED) or not self._change(times, total):
                return

    def _change(self, times: Floats, total: float) -> bool:
        """Make the best move or swap of the slots that bind; False if none gains."""
        by_step = times.reshape(self.micro_steps, self.ranks, -1)
        top = by_step.argmax(axis=1)  # (micro-steps, phases)
        excess = by_step.max(axis=1) - by_step.mean(axis=1)
        worst_first = np.argsort(-excess.ravel(), kind="stable")
        for flat in worst_first.tolist():
            step, phase = divmod(flat, by_step.shape[2])
            slot = step * self.ranks + int(top[step, phase])
            if self._exchange(slot, phase, times, total):
                return True
        return False

    def _exchange(self, slot: int, phase: int, times: Floats, total: float) -> bool:
        """Make the best exchange of an item for one, or none, of another slot."""
        most = max(2, PARTNER_ITEMS * len(times) // len(self.owner))
        partners = np.argsort(times[:, phase], kind="stable")
        if self.items.rank_of is not None:
            partners = partners[partners % self.ranks == slot % self.ranks]
        partners = partners[:most]
        partners = partners[partners != slot]
        given = np.flatnonzero(self.owner == slot)
        if not len(partners) or not len(given):
            return False
        is_partner = np.zeros(len(times), dtype=np.bool_)
        is_partner[partners] = True
        held = np.flatnonzero(is_partner[self.owner])
        taken = np.concatenate([np.full(len(partners), -1), held])
        target = np.concatenate([partners, self.owner[held]])
        # What leaves the slot, (phases, given, taken): phases first, as they are few.
        w = self._leave(self.items.work_ms, given, taken)
        of_slot = self.work_ms[slot][:, None, None] - w
        of_target = w
        of_target += self.work_ms[target].T[:, None]
        overhead = self.items.overhead_ms[:, None, None]
        if self.numbers[slot].min() > 1 and self.numbers[partners].min() > 1:
            of_slot += overhead  # one item less leaves some in every phase
            of_target += overhead
        else:
            n = self._leave(self.has, given, taken)
            of_slot += np.where(self.numbers[slot][:, None, None] > n, overhead, 0.0)
            of_target += np.where(self.numbers[target].T[:, None] + n > 0, overhead, 0.0)
        of_slot *= self.factors[slot]
        of_target *= self.factors[target]
        if not self.items.barrier:
            of_slot, of_target = (of.sum(axis=0, keepdims=True) for of in (of_slot, of_target))
        after = total + self._change_ms(slot, target, of_slot, of_target, times.copy())
        if self.limited:
            t = self._leave(self.items.tokens, given, taken)
            capacity = self.items.capacity[:, None, None]
            fits = (self.tokens[target].T[:, None] + t <= capacity).all(axis=0)
            fits &= (self.tokens[slot][:, None, None] - t <= capacity).all(axis=0)
            after[~fits] = np.inf
        i, j = divmod(int(after.argmin()), after.shape[1])
        if not after[i, j] < total * (1 - _GAIN):
            return False
        self._move(int(given[i]), int(target[j]))
        if taken[j] >= 0:
            self._move(int(taken[j]), slot)
        return True

    @staticmethod
    def _leave(amounts: npt.NDArray[Number], given: Ints, taken: Ints) -> npt.NDArray[Number]:
        """Return the amounts that leave a slot in every exchange, (phases, given, taken).

        Of one item for one that is ``taken``, or for none (-1).
        """
        of_taken = np.where(taken[:, None] >= 0, amounts[taken], 0)
        left: npt.NDArray[Number] = amounts[given].T[:, :, None] - of_taken.T[:, None]
        return left

    def _change_ms(
        self, slot: int, target: Ints, of_slot: Floats, of_target: Floats, times: Floats
    ) -> Floats:
        """Compute how the sum changes, (given, taken), of times (phases, given, taken)."""
        by_step = times.reshape(self.micro_steps, self.ranks, -1)
        before = by_step.max(axis=1)
        step, steps = slot // self.ranks, target // self.ranks
        by_step[step, slot % self.ranks] = -np.inf
        without_slot = by_step[step].max(axis=0)
        # The slowest of the others in each target's micro-step, without the slot as well.
        others = np.empty_like(times)
        for place in np.unique(target).tolist():
            rest = by_step[place // self.ranks].copy()
            rest[place % self.ranks] = -np.inf
            others[place] = rest.max(axis=0)
        change = np.maximum(of_target, others[target].T[:, None])
        change -= before[steps].T[:, None]
        same = steps == step
        now = before[step][:, None, None]
        together = np.maximum(change, of_slot - now)
        if same.all():
            change = together
        else:
            change += np.maximum(of_slot, without_slot[:, None, None]) - now
            change = np.where(same, together, change)
        total: Floats = change.sum(axis=0)
        return total

    def _move(self, item: int, slot: int) -> None:
        before = int(self.owner[item])
        self.work_ms[before] -= self.items.work_ms[item]
        self.tokens[before] -= self.items.tokens[item]
        self.numbers[before] -= self.has[item]
        self._add(np.array([item]), np.array([slot]))
