"""The exact model: which pipeline runs each sequence in how many micro-batches, for CP-SAT.

Every placement of the step is a solution of the model with no larger objective, so that what the
solver proves of the model is a bound on the step. What the model leaves out makes it smaller, never
larger: micro-batches of one-stage pipelines are counted, not formed, and negligible sequences are
divisible.

``solve`` adds which sequences and how much filler each pipeline has (``_Shares``), each pipeline's
time (``pipeline_model``), one order of equal parts (``_order_pipelines``, ``_order_sequences``),
runs the solver and reads its ``ExactSolution``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seqplan.planner.exact.instance import UNITS, Instance
from seqplan.planner.exact.pipeline_model import PipelineModel, add_order

LEAST_GAIN = 1e-4
"""Share of the time to beat by which a solution has to be shorter."""

DETERMINISTIC_LIMIT = 10.0
"""Work of the solver on a step, in its deterministic unit: 10 to 60 s of time."""


@dataclass(frozen=True)
class ExactSolution:
    """What the solver found: a proven bound (ms), and where anything shorter exists the pipeline of
    each sequence that matters; ``micro_batch``: which one of a pipeline of several stages, or None.
    """

    bound_ms: float
    pipeline: tuple[int, ...] | None
    micro_batch: tuple[int | None, ...] = ()


def solve(
    instance: Instance,
    lower_ms: float,
    limit: float = DETERMINISTIC_LIMIT,
    paths: Sequence[Sequence[int]] | None = None,
) -> ExactSolution:
    """Search for a placement shorter than the time to beat; the same inputs give the same answer.

    ``lower_ms``: a bound known already. One worker, a fixed seed and a limit of work, not of time.
    ``paths``: pipelines that run one after another on the same ranks, for each such ranks; by
    default each pipeline has separate ranks.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    highest = int(UNITS * (1 - LEAST_GAIN))
    lowest = min(instance.units(lower_ms), highest)
    step = model.new_int_var(lowest, highest, "step")
    shares = _Shares(model, instance)
    models = [
        PipelineModel(model, instance, p, shares.sequences_on(p), shares.poured[p], highest)
        for p in range(len(instance.fleet.pipelines))
    ]
    formed: list[list[list[Any]]] = [[] for _ in models]
    if paths is None:
        formed = [pipeline.limit(step) for pipeline in models]
        _order_pipelines(model, instance, shares.placed)
    else:
        times = [pipeline.time_and_bubbles() for pipeline in models]
        for number, path in enumerate(paths):
            bubbles = model.new_int_var(0, highest, f"bubbles of path {number}")
            for p in path:
                model.add(times[p][1] <= bubbles)
            model.add(sum(times[p][0] for p in path) + bubbles <= step)
    _order_sequences(model, instance, shares.placed)
    model.minimize(step)
    solver = _solver(cp_model, limit)
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return ExactSolution(instance.ms(highest + 1), None)
    bound_ms = max(lower_ms, instance.ms(solver.best_objective_bound))
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return ExactSolution(bound_ms, None)
    pipelines = tuple(row.index(True) for row in _values(solver, shares.placed))
    micro_batches = [_values(solver, rows) for rows in formed]
    return ExactSolution(
        bound_ms,
        pipelines,
        tuple(
            next((j for j, row in enumerate(micro_batches[p]) if row[i]), None)
            for i, p in enumerate(pipelines)
        ),
    )


class _Shares:
    """Where everything is: each sequence on one pipeline, filler divided among all.

    ``placed``: (sequences, pipelines), whether a sequence is on a pipeline; ``poured``: (pipelines,
    filler groups), how many tokens are.
    """

    def __init__(self, model: Any, instance: Instance) -> None:
        pipelines = range(len(instance.fleet.pipelines))
        self.placed = [
            [model.new_bool_var(f"sequence {i} on {p}") for p in pipelines]
            for i in range(len(instance.lengths))
        ]
        self.poured = [
            [
                model.new_int_var(0, group.tokens, f"filler {g} on {p}")
                for g, group in enumerate(instance.filler)
            ]
            for p in pipelines
        ]
        for row in self.placed:
            model.add_exactly_one(row)
        for g, group in enumerate(instance.filler):
            model.add(sum(self.poured[p][g] for p in pipelines) == group.tokens)

    def sequences_on(self, p: int) -> list[Any]:
        """Whether each sequence is on a pipeline."""
        return [row[p] for row in self.placed]


def _order_pipelines(model: Any, instance: Instance, placed: Sequence[Sequence[Any]]) -> None:
    """Keep one of the solutions that differ only in the names of equal pipelines.

    Pipelines of a class come in the order of their first sequence. With ``_order_sequences`` both
    hold at once for pipelines sorted by how many sequences of each length they have, the longest
    first.
    """
    first = 0
    for pipeline_class in instance.fleet.classes:
        for p in range(first + 1, first + pipeline_class.count):
            add_order(model, [row[p - 1] for row in placed], [row[p] for row in placed])
        first += pipeline_class.count


def _order_sequences(model: Any, instance: Instance, placed: Sequence[Sequence[Any]]) -> None:
    """Keep one of the solutions that differ only in the names of equal sequences.

    They come in the order of their pipelines.
    """
    for i in range(1, len(placed)):
        if instance.sequences[i] == instance.sequences[i - 1]:
            place, before = (
                sum(p * var for p, var in enumerate(row)) for row in (placed[i], placed[i - 1])
            )
            model.add(before <= place)


def _solver(cp_model: Any, limit: float) -> Any:
    """Make a solver of one worker, a fixed seed and a limit of work."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = limit
    # The solver's handler would leave none after it: Ctrl-C would then end the program on the spot.
    solver.parameters.catch_sigint_signal = False
    return solver


def _values(solver: Any, rows: Sequence[Sequence[Any]]) -> list[list[bool]]:
    """Read the variables that are true in the solution."""
    return [[bool(solver.value(var)) for var in row] for row in rows]
