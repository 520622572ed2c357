"""One pipeline of the exact model: its sequences, its micro-batches, and its least time.

``PipelineModel.limit`` adds, in this order: sequences that do not fit; the number of micro-batches
V, by tokens and by dual feasible functions; the work, and the time if there is one stage. With
several stages also the largest micro-batch M, and up to ``MOST_FORMED`` formed one by one. No order
of the micro-batches ends before their sum and the least bubbles of M, or before M on every stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from seqplan.planner.exact.instance import RATE, Instance

PARTS = 1_000
"""Parts of a micro-batch in which bubbles are counted."""

MOST_FORMED = 12
"""Micro-batches of a pipeline of several stages that are formed one by one; more are counted."""


class PipelineModel:
    """Variables and constraints of the pipeline ``number`` of an instance's fleet.

    ``model``: of CP-SAT, which they are added to; ``placed``: for each sequence that matters
    whether it is here; ``poured``: tokens of each filler group that are; ``highest``: units that no
    pipeline takes more of.
    """

    def __init__(
        self,
        model: Any,
        instance: Instance,
        number: int,
        placed: Sequence[Any],
        poured: Sequence[Any],
        highest: int,
    ) -> None:
        self._model = model
        self._instance = instance
        self._class = instance.fleet.pipelines[number]
        self._name = number
        self._placed = placed
        self._poured = poured
        self._highest = highest
        self._works = instance.works(self._class)
        self._rates = instance.rates(self._class)
        self._padded = [self._class.pad(length) for length in instance.lengths]
        self._overhead = instance.units(self._class.c)

    def limit(self, step: Any) -> list[list[Any]]:
        """Let the pipeline take no more than ``step``, a variable in units.

        Returns, for each micro-batch that is formed, which sequences are in it.
        """
        most, count, work = self._micro_batches()
        if self._class.pp == 1:
            self._model.add(work + self._overhead * count <= step)
            return []
        largest, used = self._largest(work, count, most)
        self._model.add(work + self._overhead * count + self._bubbles(largest, used) <= step)
        self._model.add(self._class.pp * (largest + self._overhead * used) <= step)
        return self._form(count, largest)

    def time_and_bubbles(self) -> tuple[Any, Any]:
        """Return the time of the pipeline's micro-batches, and of its bubbles, in units.

        Of what shares its ranks only the largest bubbles count.
        """
        most, count, work = self._micro_batches()
        time = work + self._overhead * count
        if self._class.pp == 1:
            return time, 0
        largest, used = self._largest(work, count, most)
        self._form(count, largest)
        return time, self._bubbles(largest, used)

    def _bubbles(self, largest: Any, used: Any) -> Any:
        """Add the least bubbles, rounded down to whole units."""
        bubbles = self._model.new_int_var(0, self._highest, f"bubbles of {self._name}")
        parts = int(self._class.least_bubbles * PARTS)
        exactly = parts * (largest + self._overhead * used)
        self._model.add(exactly <= PARTS * bubbles + (PARTS - 1))
        return bubbles

    def _micro_batches(self) -> tuple[int, Any, Any]:
        """Add V and the work; also the most that V can be."""
        self._leave_out_what_does_not_fit()
        most = len(self._instance.batch.lengths)
        if self._overhead:
            most = min(most, self._highest // self._overhead)
        return most, self._count(most), self._work()

    def _leave_out_what_does_not_fit(self) -> None:
        for var, tokens in zip(self._placed, self._padded, strict=True):
            if tokens > self._class.capacity:
                self._model.add(var == 0)
        for var, group in zip(self._poured, self._instance.filler, strict=True):
            if self._class.pad(group.shortest) > self._class.capacity:
                self._model.add(var == 0)

    def _count(self, most: int) -> Any:
        """Add V, at most ``most``, with what bounds it from below."""
        capacity = self._class.capacity
        count = self._model.new_int_var(0, most, f"micro-batches of {self._name}")
        for needs, available in _dual_feasible(self._padded, capacity):
            self._model.add(_weight(needs, self._placed) <= available * count)
        tokens = _weight(self._padded, self._placed) + sum(self._poured)
        self._model.add(tokens <= capacity * count)
        return count

    def _work(self) -> Any:
        """Add the work of all sequences, the filler's in whole units."""
        work = _weight(self._works, self._placed)
        if self._poured:
            filler = self._model.new_int_var(0, self._highest, f"filler's work on {self._name}")
            exactly = _weight(self._rates, self._poured)
            self._model.add(exactly <= RATE * filler + (RATE - 1))
            work += filler
        return work

    def _largest(self, work: Any, count: Any, most: int) -> tuple[Any, Any]:
        """Add M of a pipeline of several stages, and whether it has micro-batches."""
        model, name = self._model, self._name
        used = model.new_bool_var(f"{name} is used")
        model.add(count >= used)
        model.add(count <= most * used)
        largest = model.new_int_var(0, self._highest, f"largest work of {name}")
        for units, var in zip(self._works, self._placed, strict=True):
            model.add(largest >= units * var)
        even = model.new_int_var(
            0, most * self._highest, f"work that micro-batches of {name} can hold"
        )
        model.add_multiplication_equality(even, [count, largest])
        # The largest is rounded down.
        model.add(work <= even + count)
        return largest, used

    def _form(self, count: Any, largest: Any) -> list[list[Any]]:
        """Form up to ``MOST_FORMED`` micro-batches one by one; of more, none holds.

        Each has its tokens and no more work than the largest; those in use come first, in the order
        of their first sequences.
        """
        model, name = self._model, self._name
        formed = range(min(MOST_FORMED, len(self._instance.batch.lengths)))
        many = model.new_bool_var(f"{name} has more")
        model.add(count > len(formed)).only_enforce_if(many)
        inside = [[model.new_bool_var(f"in {j} of {name}") for _ in self._placed] for j in formed]
        filled = [
            [
                model.new_int_var(0, group.tokens, f"in {j} of {name}")
                for group in self._instance.filler
            ]
            for j in formed
        ]
        used = [model.new_bool_var(f"{j} of {name} is used") for j in formed]
        model.add(count == sum(used)).only_enforce_if(~many)
        for i, var in enumerate(self._placed):
            model.add(sum(row[i] for row in inside) == var).only_enforce_if(~many)
        for g, var in enumerate(self._poured):
            model.add(sum(row[g] for row in filled) == var).only_enforce_if(~many)
        for j in formed:
            tokens = _weight(self._padded, inside[j]) + sum(filled[j])
            model.add(tokens <= self._class.capacity * used[j])
            work = _weight(self._works, inside[j]) * RATE + _weight(self._rates, filled[j])
            model.add(work <= RATE * largest + (RATE - 1))
            if j:
                model.add_implication(used[j], used[j - 1])
                add_order(model, inside[j - 1], inside[j])
        return inside


def add_order(model: Any, first: Sequence[Any], second: Sequence[Any]) -> None:
    """Let the second of two equal sets begin with a later sequence than the first."""
    for i, var in enumerate(second):
        model.add(sum(first[:i]) >= var)


def _weight(weights: Sequence[int], variables: Sequence[Any]) -> Any:
    return sum(weight * var for weight, var in zip(weights, variables, strict=True))


def _dual_feasible(padded: Sequence[int], capacity: int) -> Iterator[tuple[list[int], int]]:
    """List the needs of sequences in each micro-batch, and its capacity.

    Dual feasible functions of Fekete and Schepers, u^(k) for k = 1 to 4, times k·(k + 1): for
    k = 1, a micro-batch holds one sequence above half of MaxLen, or two of just half.
    """
    for k in range(1, 5):
        needs = []
        for tokens in padded:
            parts, rest = divmod((k + 1) * tokens, capacity)
            needs.append(parts * (k + 1) if rest else parts * k)
        yield needs, k * (k + 1)
