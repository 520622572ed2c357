"""When gradients leave for their owners: once a step, or after each micro-batch.

Once a step, every rank keeps the sum of its micro-batches, whole, and units leave in its last
backward or after it. After each micro-batch, a rank holds the gradients of a few units only, which
the owners add up; all ranks then go through the step's micro-batches in lockstep
(``plans.views.lockstep``), and each micro-step sends as many bytes as a whole step otherwise.

Both reduce units in one order on all ranks, the last ones first, as backward comes to them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import torch
import torch.distributed as dist

from seqplan.plans.views.lockstep import LockstepSchedule, lockstep_micro_steps
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.device_copy import copy_to_device
from seqplan.runtime.errors import communicating
from seqplan.runtime.states.sync import Finish
from seqplan.runtime.states.unit import Unit

Reduce = Literal["step", "micro-batch"]
"""Interval at which gradients are summed at their owners."""

IN_FLIGHT = 2
"""Units in reduction when a rank waits for them: their buffers bound the memory."""

StartReduceScatter = Callable[[int, bool], Finish]
"""Starts a unit's reduce-scatter, which adds to its owners' sums if the flag is set."""


class GradientReduction(Protocol):
    """Events of a step that the states report, in this order."""

    def begin(self, view: RankView | None) -> None:
        """A step's parameters are about to be gathered; without ``view``, for reading only."""

    def next_micro_batch(self) -> None:
        """The forward of a micro-batch follows."""

    def begin_backward(self, *, last: bool) -> None:
        """A backward follows, the ``last`` one if reduce-scatters may overlap with it."""

    def on_accumulated(self, unit: Unit) -> None:
        """Backward has come to a parameter of ``unit``."""

    def end_backward(self) -> None:
        """A backward has come to its end."""

    def finish(self) -> None:
        """This rank has no more work: sum up the remaining gradients everywhere."""


class ReduceOnce:
    """Reduces once a step. ``start``: starts a unit's reduce-scatter."""

    def __init__(self, units: Sequence[Unit], start: StartReduceScatter) -> None:
        self._units, self._start = units, start
        self._finishes: dict[int, Finish] = {}
        self._reduced = 0
        self._last = False

    def begin(self, view: RankView | None) -> None:
        """As ``GradientReduction``."""
        self._reduced = 0
        self._last = False
        for unit in self._units:
            unit.reduction_started = False

    def next_micro_batch(self) -> None:
        """As ``GradientReduction``; nothing to do."""

    def begin_backward(self, *, last: bool) -> None:
        """As ``GradientReduction``."""
        self._last = last
        if last:
            self._reduce_ready()  # what this rank does not hold waits for nothing here

    def on_accumulated(self, unit: Unit) -> None:
        """As ``GradientReduction``."""
        if self._last:
            _count_down(unit)
            self._reduce_ready()

    def end_backward(self) -> None:
        """As ``GradientReduction``."""
        self._last = False

    def finish(self) -> None:
        """As ``GradientReduction``."""
        for number in range(len(self._units)):
            while self._reduced < min(len(self._units), number + IN_FLIGHT):
                self._reduce_next()
            self._finishes.pop(len(self._units) - 1 - number)()

    def _reduce_ready(self) -> None:
        """Reduce the units that backward has finished, the last ones first."""
        while self._reduced < len(self._units) and not self._units[-1 - self._reduced].awaited:
            self._reduce_next()

    def _reduce_next(self) -> None:
        at = len(self._units) - 1 - self._reduced
        self._reduced += 1
        self._units[at].reduction_started = True
        self._finishes[at] = self._start(at, False)


class ReduceEachMicroBatch:
    """Reduces after each micro-batch, in lockstep over ``group``.

    A rank waits within backward, which is safe as all ranks go through the same micro-steps: the
    reduction of a micro-step never waits for a later one.
    """

    def __init__(
        self, units: Sequence[Unit], start: StartReduceScatter, group: dist.ProcessGroup
    ) -> None:
        self._units, self._start, self._group = units, start, group
        self._micro_steps: LockstepSchedule | None = None
        self._micro_batch = 0
        self._round = 0
        self._reduced = 0
        self._under_way: deque[Finish] = deque()
        self._announced = False

    def begin(self, view: RankView | None) -> None:
        """As ``GradientReduction``; collective if there is a step."""
        self._micro_steps = None if view is None else self._agree_on_counts(view)
        self._micro_batch = self._round = self._reduced = 0
        self._under_way.clear()
        self._announced = False
        if view is not None:
            for unit in self._units:
                unit.forget_gradient()
                unit.reserve_reduced()
                unit.reduced.zero_()

    def next_micro_batch(self) -> None:
        """As ``GradientReduction``: take part in micro-steps without a micro-batch here."""
        counts = self._of_step().with_work
        if self._micro_batch < len(counts):
            self._join(counts[self._micro_batch])
        self._announced = True

    def begin_backward(self, *, last: bool) -> None:
        """As ``GradientReduction``; ``RuntimeError`` without ``next_micro_batch`` before."""
        if self._micro_batch >= len(self._of_step().with_work) or not self._announced:
            raise RuntimeError(
                "gradients are reduced after each micro-batch: call states.next_micro_batch() "
                "before each forward, and backward once for each micro-batch of the step's view"
            )
        self._reduced = 0
        for unit in self._units:
            unit.awaited, unit.reduction_started = len(unit.parameters), False

    def on_accumulated(self, unit: Unit) -> None:
        """As ``GradientReduction``."""
        _count_down(unit)
        while self._reduced < len(self._units) and not self._units[-1 - self._reduced].awaited:
            self._reduce_next()

    def end_backward(self) -> None:
        """As ``GradientReduction``: reduce the units that backward has not completed."""
        self._reduce_rest()
        self._micro_batch += 1
        self._announced = False

    def finish(self) -> None:
        """As ``GradientReduction``."""
        micro_steps = self._of_step()
        if self._micro_batch != (number := len(micro_steps.with_work)):
            raise RuntimeError(
                f"backward ran {self._micro_batch} times, and the step has {number} "
                "micro-batches of this rank"
            )
        self._join(micro_steps.total)
        while self._under_way:
            self._under_way.popleft()()

    def _of_step(self) -> LockstepSchedule:
        if self._micro_steps is None:
            raise RuntimeError(
                "gradients are reduced after each micro-batch: "
                "give states.all_gather the step's view"
            )
        return self._micro_steps

    def _join(self, stop: int) -> None:
        """Take part in the micro-steps before ``stop``, with zeros."""
        while self._round < stop:
            self._reduced = 0
            self._reduce_rest()

    def _reduce_rest(self) -> None:
        while self._reduced < len(self._units):
            self._reduce_next()
        self._round += 1

    def _reduce_next(self) -> None:
        at = len(self._units) - 1 - self._reduced
        self._reduced += 1
        while len(self._under_way) >= IN_FLIGHT:
            self._under_way.popleft()()
        unit = self._units[at]
        unit.reduction_started = True
        unit.reserve_gradient()
        self._under_way.append(self._start(at, True))
        unit.forget_gradient()

    def _agree_on_counts(self, view: RankView) -> LockstepSchedule:
        """Return the schedule of the step's micro-batches; collective."""
        device = self._units[0].device if self._units else torch.device("cpu")
        known = torch.zeros(len(view.placement), dtype=torch.int64)
        for pipeline in view.pipelines:
            known[pipeline.index] = len(pipeline.micro_batches)
        counts = copy_to_device(known, device)
        with communicating("agreeing on the step's micro-batches"):
            dist.all_reduce(counts, op=dist.ReduceOp.MAX, group=self._group)
        micro_steps = lockstep_micro_steps(view.placement, counts.tolist(), view.rank)
        experts = view.experts
        if experts is not None and experts.total > len(experts.micro_steps):
            # In micro-steps without tokens too the rank runs a backward.
            total = max(micro_steps.total, experts.world)
            return LockstepSchedule(tuple(range(experts.total)), total)
        return micro_steps


def _count_down(unit: Unit) -> None:
    """Note that a gradient has come; ``RuntimeError`` if one comes after the unit has left."""
    unit.awaited -= 1
    if unit.reduction_started:
        raise RuntimeError(
            f"a parameter of {unit.name} got a gradient again after its unit had been reduced: "
            "modules that run several times within checkpoints are not supported"
        )
