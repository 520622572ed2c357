"""The sequences of a batch that no micro-batch holds yet."""

from __future__ import annotations

from bisect import bisect_left
from math import sqrt

from seqplan.planner.placement.fleet import Bin, PipelineClass


class SequencePool:
    """The unassigned sequences: how many of each distinct length, with links over spent ones."""

    __slots__ = ("counts", "left", "lengths", "negated", "next")

    def __init__(
        self, lengths: list[int], counts: list[int], n: int, negated: list[int] | None = None
    ) -> None:
        self.lengths = lengths
        self.negated = [-length for length in lengths] if negated is None else negated
        self.counts = counts.copy()
        self.next = [i if n else i + 1 for i, n in enumerate(counts)] + [len(lengths)]
        self.left = n

    def copy(self) -> SequencePool:
        """Return a pool with the same sequences unassigned."""
        pool = SequencePool(self.lengths, self.counts, self.left, self.negated)
        pool.next = self.next.copy()
        return pool

    def longest(self, limit: float) -> int | None:
        """Return the index of the longest unassigned length ≤ ``limit``; None without one."""
        links = self.next
        i = bisect_left(self.negated, -limit)
        while links[i] != i:
            links[i] = links[links[i]]
            i = links[i]
        return i if i < len(self.lengths) else None

    def top_up(
        self, pipeline_class: PipelineClass, micro: Bin, work: float, tokens: int, above: int
    ) -> tuple[float, int]:
        """Add sequences that fit ``work`` ms and ``tokens`` to one micro-batch, longest first.

        Only sequences longer than ``above`` are taken. Returns the work and tokens left.
        """
        a, b, unit = pipeline_class.a, pipeline_class.b, pipeline_class.unit
        lengths, negated, counts, links = self.lengths, self.negated, self.counts, self.next
        four_a, b_squared, end, i = 4 * a, b * b, len(self.lengths), 0
        while work > 0:
            limit = 2 * work / (b + sqrt(b_squared + four_a * work))
            i = bisect_left(negated, -(tokens if tokens < limit else limit), i)
            while links[i] != i:
                links[i] = links[links[i]]
                i = links[i]
            if i == end:
                break
            length = lengths[i]
            if length <= above:
                break
            cost = length * (a * length + b)
            padded = length if unit == 1 else -(-length // unit) * unit
            n = counts[i]
            if n > 1:
                n = min(n, tokens // padded, int(work / cost)) or 1
            work -= n * cost
            tokens -= n * padded
            micro.append((i, n))
            self.left -= n
            counts[i] -= n
            if not counts[i]:
                links[i] = i + 1
        return work, tokens
