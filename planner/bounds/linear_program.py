"""Linear programs of bounds, solved by GLOP.

OR-tools reads the arrays without a modeling layer; for programs of some hundred rows that takes a
quarter of the time of HiGHS in SciPy. A solution proves nothing by itself: bounds are computed from
the duals and hold for any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from seqplan.planner.placement.fleet import Floats, Ints

SOLVER = ("ortools.linear_solver.python.model_builder_helper", "scipy.sparse")
"""Modules that solving needs."""

PARAMETERS = "use_preprocessing: false initial_basis: NONE"
"""Of GLOP: 1.3 to 1.6 times as fast as its defaults on programs of steps and proposals."""

Block = tuple[Floats, Ints, Ints]
"""Coefficients of constraints with their rows and columns."""


def load_solver() -> None:
    """Import the solver: half a second, once, which belongs to no step's planning.

    Commands that plan nothing do not wait for it.
    """
    for module in SOLVER:
        import_module(module)


@dataclass(frozen=True)
class LinearSolution:
    """An optimal solution: the objective, (columns,) values and (rows,) duals.

    The dual of a row: by how much one more unit of its limit raises the objective.
    """

    objective: float
    values: Floats
    duals: Floats


def minimize(
    objective: Floats,
    blocks: Sequence[Block],
    limits: Floats,
    equals: Floats,
    least: Floats | None = None,
) -> LinearSolution | None:
    """Minimize ``objective`` over columns of at least ``least``, by default 0; None if unsolved.

    The first rows are at most ``limits``, the others equal ``equals``; ``blocks`` hold their
    coefficients, each place once.
    """
    from scipy.sparse import csr_matrix

    helper: Any = import_module(SOLVER[0])  # whose stubs do not describe arrays
    entries, at_row, at_column = (np.concatenate(part) for part in zip(*blocks, strict=True))
    rows, columns = len(limits) + len(equals), len(objective)
    # By rows already, which SciPy needs a third of the solver's time for.
    by_rows = np.argsort(at_row * columns + at_column, kind="stable")
    by_rows = by_rows[entries[by_rows] != 0]
    # Its index type, which SciPy would find out by a look at all of them.
    ends = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(np.bincount(at_row[by_rows], minlength=rows), out=ends[1:])
    at_column = at_column[by_rows].astype(np.int32)
    matrix = csr_matrix((entries[by_rows], at_column, ends), shape=(rows, columns))
    program = helper.ModelBuilderHelper()
    program.fill_model_from_sparse_data(
        np.zeros(columns) if least is None else least,
        np.full(columns, np.inf),
        objective,
        np.concatenate([np.full(len(limits), -np.inf), equals]),
        np.concatenate([limits, equals]),
        matrix,
    )
    solver = helper.ModelSolverHelper("glop")
    solver.set_solver_specific_parameters(PARAMETERS)
    solver.solve(program)
    if solver.status() != helper.SolveStatus.OPTIMAL:
        return None
    return LinearSolution(solver.objective_value(), solver.variable_values(), solver.dual_values())
