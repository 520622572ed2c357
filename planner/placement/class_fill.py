"""The fill of one class of pipelines in plain Python: the reference and the fallback.

``fill_kernel.c`` does the same in C, operation by operation: whatever changes here changes there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, inf

from seqplan.planner.placement.fleet import _ROUND, Bin, ClassPlacement, PipelineClass, form_s
from seqplan.planner.placement.mode_fill import ModeTables, fill_class_modes, find_table
from seqplan.planner.placement.sequence_pool import SequencePool

MOST_COUNTED = 10_000
"""Micro-batches of a pipeline up to which the best V is sought. More would add less than pp/10,000
of the work: bubbles take (pp − 1)/(V + pp − 1) of its time, and V only limits the largest
micro-batch."""


class PythonFill:
    """Fills classes of pipelines, one after the other, from the sequences of one batch."""

    def __init__(
        self,
        lengths: list[int],
        counts: list[int],
        negated: list[int],
        tables: ModeTables | None = None,
    ) -> None:
        self._pool = SequencePool(lengths, counts, sum(counts), negated)
        self._filled: list[tuple[PipelineClass, ClassPlacement]] = []
        self._tables = {} if tables is None else tables

    @property
    def counts(self) -> list[int]:
        """Count the unassigned sequences of each distinct length."""
        return self._pool.counts

    @property
    def left(self) -> int:
        """Count the unassigned sequences."""
        return self._pool.left

    def fill_class(
        self,
        pipeline_class: PipelineClass,
        reach: int,
        forced_above: int,
        target: float,
        ceiling: float,
        new_first: bool,
    ) -> None:
        """Fill the pipelines of a class with sequences of up to ``reach`` tokens.

        Pipelines are opened for sequences above ``forced_above`` first; then they, and new ones,
        take any. Times in ms.
        """
        pool = self._pool
        if pipeline_class.modes:
            placed = fill_class_modes(
                pool,
                find_table(self._tables, pool.lengths, pipeline_class),
                pipeline_class,
                reach,
                forced_above,
                target,
                ceiling,
                new_first,
            )
            self._filled.append((pipeline_class, placed))
            return
        opened: list[_Pipeline] = []
        for _ in range(pipeline_class.count):
            first = pool.longest(reach)
            if first is None or pool.lengths[first] <= forced_above:
                break
            pipeline = _open(pipeline_class, pool.lengths[first], target, ceiling)
            pipeline.fill(pool, forced_above)
            opened.append(pipeline)
        for place in range(pipeline_class.count):
            if place == len(opened):
                first = pool.longest(reach)
                if first is None:
                    break
                opened.append(_open(pipeline_class, pool.lengths[first], target, ceiling))
            opened[place].fill(pool, 0, new_first)
        placement: ClassPlacement = tuple(tuple(pipeline.bins) for pipeline in opened)
        placement += ((),) * (pipeline_class.count - len(opened))
        self._filled.append((pipeline_class, placement))

    def placements(self) -> list[tuple[ClassPlacement, tuple[float, ...]]]:
        """Return the placement on each class in the order of filling, with forms S."""
        lengths = self._pool.lengths
        return [
            (placement, tuple(form_s(pipeline_class, lengths, bins) for bins in placement))
            for pipeline_class, placement in self._filled
        ]


@dataclass
class _Pipeline:
    """A pipeline being filled: its micro-batches with their work (ms) and the tokens left.

    ``budget``: ms left for work and micro-batches' overhead, shared by all of them; ``cap``: the
    most work of one micro-batch, for which the pipeline's bubbles have been paid already.
    """

    pipeline_class: PipelineClass
    budget: float
    cap: float
    bins: list[Bin] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def fill(self, pool: SequencePool, above: int, new_first: bool = False) -> None:
        """Take sequences longer than ``above``, into open micro-batches and then new ones.

        ``new_first``: the other way round.
        """
        if new_first:
            already_open = len(self.bins)
            self._add(pool, above)
            self._top_up(pool, above, already_open)
        else:
            self._top_up(pool, above, len(self.bins))
            self._add(pool, above)

    def _top_up(self, pool: SequencePool, above: int, already_open: int) -> None:
        pipeline_class = self.pipeline_class
        for j, micro in enumerate(self.bins[:already_open]):
            room = min(self.budget, self.cap - self.work[j])
            left, self.tokens[j] = pool.top_up(pipeline_class, micro, room, self.tokens[j], above)
            self.budget -= room - left
            self.work[j] += room - left

    def _add(self, pool: SequencePool, above: int) -> None:
        pipeline_class = self.pipeline_class
        while pool.left:
            new: Bin = []
            room = min(self.budget - pipeline_class.c, self.cap)
            left, tokens = pool.top_up(pipeline_class, new, room, pipeline_class.capacity, above)
            if not new:
                break
            self.bins.append(new)
            self.work.append(room - left)
            self.tokens.append(tokens)
            self.budget -= room - left + pipeline_class.c


def _open(pipeline_class: PipelineClass, longest: int, target: float, ceiling: float) -> _Pipeline:
    """Open an empty pipeline whose first sequence will have ``longest`` tokens.

    Several stages: either V even micro-batches, V with the most capacity that leaves each of them
    the work of that sequence; or, if that holds more, a first micro-batch of that sequence alone
    which then sets the bubbles, and no other larger.
    """
    work = longest * (pipeline_class.a * longest + pipeline_class.b)
    budget = min(max(target, pipeline_class.pp * (work + pipeline_class.c)), ceiling) * _ROUND
    if pipeline_class.pp == 1:
        return _Pipeline(pipeline_class, budget, inf)
    bubbles = pipeline_class.pp - 1
    token_work = pipeline_class.capacity * (pipeline_class.a * longest + pipeline_class.b)
    # Without overhead, V rises as long as each holds that sequence.
    fitting = min(budget / (work + pipeline_class.c), float(MOST_COUNTED + bubbles))
    most = max(int(fitting) - bubbles, 1)
    best, micro_batches = -1.0, 1
    for v in range(1, most + 1):
        capacity = v * min(budget / (v + bubbles) - pipeline_class.c, token_work)
        if capacity <= best:
            break  # concave in v: past its maximum
        best, micro_batches = capacity, v
    left = budget - bubbles * (work * _ROUND + pipeline_class.c)
    peaked = left - pipeline_class.c * max(
        ceil(left / (work + pipeline_class.c)), ceil(left / (token_work + pipeline_class.c))
    )
    if micro_batches == most and peaked > best:
        return _Pipeline(pipeline_class, left, work * _ROUND)
    even_work = budget / (micro_batches + bubbles) - pipeline_class.c
    return _Pipeline(pipeline_class, micro_batches * (even_work + pipeline_class.c), even_work)
