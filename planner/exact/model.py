"""The exact model: which pipeline runs each sequence in how many micro-batches, for CP-SAT.

Every placement of the step is a solution of the model with no larger objective, so that what the
solver proves of the model is a bound on the step. What the model leaves out makes it smaller, never
larger: micro-batches of one-stage pipelines are counted, not formed, and negligible sequences are
divisible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from seqplan.planner.exact.instance import RATE, UNITS, Instance
from seqplan.planner.placement.fleet import PipelineClass

MOST_FORMED = 12
"""Micro-batches of a pipeline of several stages that are formed one by one; more are counted."""

LEAST_GAIN = 1e-4
"""Share of the time to beat by which a solution has to be shorter."""

DETERMINISTIC_LIMIT = 10.0
"""Work that the solver may do on a step, in its own deterministic unit: one to two seconds."""


@dataclass(frozen=True)
class Answer:
    """What the solver found: a proven bound (ms), and where anything shorter exists the pipeline of
    each sequence that matters; ``micro_batch``: which one of a pipeline of several stages, or None.
    """

    bound_ms: float
    pipeline: tuple[int, ...] | None
    micro_batch: tuple[int | None, ...] = ()


def solve(instance: Instance, lower_ms: float, limit: float = DETERMINISTIC_LIMIT) -> Answer:
    """Search for a placement shorter than the time to beat; the same inputs give the same answer.

    ``lower_ms``: a bound known already. One worker, a fixed seed and a limit of work, not of time.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    highest = int(UNITS * (1 - LEAST_GAIN))
    lowest = min(instance.units(lower_ms), highest)
    step = model.new_int_var(lowest, highest, "step")
    pipelines = instance.fleet.pipelines
    placed = [
        [model.new_bool_var(f"sequence {i} on {p}") for p in range(len(pipelines))]
        for i in range(len(instance.lengths))
    ]
    poured = [
        [
            model.new_int_var(0, group.tokens, f"filler {g} on {p}")
            for g, group in enumerate(instance.filler)
        ]
        for p in range(len(pipelines))
    ]
    for row in placed:
        model.add_exactly_one(row)
    for g, group in enumerate(instance.filler):
        model.add(sum(poured[p][g] for p in range(len(pipelines))) == group.tokens)
    formed = []
    for p, pipeline_class in enumerate(pipelines):
        column = [row[p] for row in placed]
        formed.append(
            _add_pipeline(model, instance, pipeline_class, column, poured[p], step, highest, p)
        )
    _break_symmetry(model, instance, placed)
    model.minimize(step)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = limit
    # It would put its own handler, and none after: Ctrl-C would then end the program on the spot.
    solver.parameters.catch_sigint_signal = False
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return Answer(instance.ms(highest + 1), None)
    bound = max(lower_ms, instance.ms(solver.best_objective_bound))
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Answer(bound, None)
    chosen = tuple(next(p for p, var in enumerate(row) if solver.value(var)) for row in placed)
    return Answer(
        bound,
        chosen,
        tuple(
            next((j for j, row in enumerate(formed[p]) if solver.value(row[i])), None)
            for i, p in enumerate(chosen)
        ),
    )


def _add_pipeline(
    model: Any,
    instance: Instance,
    pipeline_class: PipelineClass,
    placed: Sequence[Any],
    poured: Sequence[Any],
    step: Any,
    highest: int,
    name: int,
) -> list[list[Any]]:
    """Add one pipeline's time in form S; return, for each micro-batch that is formed, which
    sequences are in it."""
    works, bubbles = instance.works(pipeline_class), pipeline_class.pp - 1
    overhead = instance.units(pipeline_class.c)
    capacity = pipeline_class.capacity
    padded = [pipeline_class.pad(length) for length in instance.lengths]
    for var, tokens in zip(placed, padded, strict=True):
        if tokens > capacity:
            model.add(var == 0)
    for var, group in zip(poured, instance.filler, strict=True):
        if pipeline_class.pad(group.shortest) > capacity:
            model.add(var == 0)
    most = len(instance.batch.lengths)
    if overhead:
        most = min(most, highest // overhead)
    count = model.new_int_var(0, most, f"micro-batches of {name}")
    for need, available in _counted(padded, capacity):
        model.add(sum(n * var for n, var in zip(need, placed, strict=True)) <= available * count)
    tokens = sum(n * var for n, var in zip(padded, placed, strict=True)) + sum(poured)
    model.add(tokens <= capacity * count)
    work = sum(w * var for w, var in zip(works, placed, strict=True))
    if poured:
        filler = model.new_int_var(0, highest, f"filler's work on {name}")
        rates = instance.rates(pipeline_class)
        model.add(
            sum(rate * var for rate, var in zip(rates, poured, strict=True))
            <= RATE * filler + (RATE - 1)
        )
        work += filler
    if not bubbles:
        model.add(work + overhead * count <= step)
        return []
    used = model.new_bool_var(f"{name} is used")
    model.add(count >= used)
    model.add(count <= most * used)
    largest = model.new_int_var(0, highest, f"largest work of {name}")
    model.add(work + overhead * count + bubbles * (largest + overhead * used) <= step)
    for w, var in zip(works, placed, strict=True):
        model.add(largest >= w * var)
    even = model.new_int_var(0, most * highest, f"work that micro-batches of {name} can hold")
    model.add_multiplication_equality(even, [count, largest])
    # The largest is rounded down.
    model.add(work <= even + count)
    return _form(
        model, instance, pipeline_class, placed, poured, (works, padded), count, largest, name
    )


def _form(
    model: Any,
    instance: Instance,
    pipeline_class: PipelineClass,
    placed: Sequence[Any],
    poured: Sequence[Any],
    taken: tuple[Sequence[int], Sequence[int]],
    count: Any,
    largest: Any,
    name: int,
) -> list[list[Any]]:
    """Form up to ``MOST_FORMED`` micro-batches of a pipeline of several stages one by one.

    ``taken``: units of work and padded tokens of each sequence. A pipeline of more is only counted.
    """
    works, padded = taken
    rates = instance.rates(pipeline_class)
    formed = range(min(MOST_FORMED, len(instance.batch.lengths)))
    many = model.new_bool_var(f"{name} has more")
    model.add(count > len(formed)).only_enforce_if(many)
    inside = [[model.new_bool_var(f"in {j} of {name}") for _ in placed] for j in formed]
    filled = [
        [model.new_int_var(0, group.tokens, f"in {j} of {name}") for group in instance.filler]
        for j in formed
    ]
    open_ = [model.new_bool_var(f"{j} of {name} is used") for j in formed]
    model.add(count == sum(open_)).only_enforce_if(~many)
    for i, var in enumerate(placed):
        model.add(sum(row[i] for row in inside) == var).only_enforce_if(~many)
    for g, var in enumerate(poured):
        model.add(sum(row[g] for row in filled) == var).only_enforce_if(~many)
    for j in formed:
        tokens = sum(n * var for n, var in zip(padded, inside[j], strict=True)) + sum(filled[j])
        model.add(tokens <= pipeline_class.capacity * open_[j])
        work = sum(w * var for w, var in zip(works, inside[j], strict=True)) * RATE
        work += sum(rate * var for rate, var in zip(rates, filled[j], strict=True))
        model.add(work <= RATE * largest + (RATE - 1))
        if j:
            model.add_implication(open_[j], open_[j - 1])
            _in_order(model, inside[j - 1], inside[j])
    return inside


def _break_symmetry(model: Any, instance: Instance, placed: Sequence[Sequence[Any]]) -> None:
    """Keep one of the solutions that differ in the names of alike pipelines or sequences only.

    Pipelines of a class come in the order of their first sequence, and sequences of one length in
    the order of their pipelines; both hold at once for pipelines sorted by how many sequences of
    each length they have, the longest first.
    """
    first = 0
    for pipeline_class in instance.fleet.classes:
        for p in range(first + 1, first + pipeline_class.count):
            _in_order(model, [row[p - 1] for row in placed], [row[p] for row in placed])
        first += pipeline_class.count
    for i in range(1, len(placed)):
        if instance.sequences[i] == instance.sequences[i - 1]:
            place, before = (
                sum(p * var for p, var in enumerate(row)) for row in (placed[i], placed[i - 1])
            )
            model.add(before <= place)


def _in_order(model: Any, first: Sequence[Any], second: Sequence[Any]) -> None:
    """Let the second of two alike sets begin with a later sequence than the first."""
    for i, var in enumerate(second):
        model.add(sum(first[:i]) >= var)


def _counted(padded: Sequence[int], capacity: int) -> Iterator[tuple[list[int], int]]:
    """List what sequences need of each micro-batch, and what it has of that.

    Dual feasible functions of Fekete and Schepers, u^(k) for k = 1 to 4, times k·(k + 1): for
    k = 1, a micro-batch holds one sequence above half of MaxLen, or two of just half.
    """
    for k in range(1, 5):
        need = []
        for tokens in padded:
            parts, rest = divmod((k + 1) * tokens, capacity)
            need.append(parts * (k + 1) if rest else parts * k)
        yield need, k * (k + 1)
