"""Linear programs: their optimum and duals against another solver; signals stay as they are."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

from seqplan.planner.bounds.linear_program import minimize


def test_optima_and_duals_equal_those_of_another_solver() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        limits, equals, columns = random.integers(1, 12, 3)
        use = random.uniform(0, 1, (limits, columns)) * (random.random((limits, columns)) < 0.5)
        sums = random.uniform(0, 1, (equals, columns)) * (random.random((equals, columns)) < 0.5)
        least, inside = random.uniform(0, 1, columns), random.uniform(1, 2, columns)
        most, exactly = use @ inside, sums @ inside
        cost = random.uniform(0, 1, columns)
        whole = np.concatenate([use, sums])
        rows, at = np.indices(whole.shape)
        block = (whole.ravel(), rows.ravel(), at.ravel())
        found = minimize(cost, [block], most, exactly, least)
        bounds = np.stack([least, np.full(columns, np.inf)], axis=1)
        other = linprog(cost, use, most, sums, exactly, bounds)
        assert found.objective == pytest.approx(other.fun, rel=1e-6)
        assert cost @ found.values == pytest.approx(other.fun, rel=1e-6)
        # Duals prove the optimum: a weak one would be below it.
        reduced = cost - found.duals @ whole
        assert np.all(found.duals[:limits] <= 1e-6)
        assert np.all(reduced >= -1e-6)
        proven = found.duals @ np.concatenate([most, exactly]) + reduced @ least
        assert proven == pytest.approx(other.fun, rel=1e-5)


def test_no_solution_is_none() -> None:
    block = (np.array([1.0, 1.0]), np.array([0, 1]), np.array([0, 0]))
    assert minimize(np.ones(1), [block], np.ones(1), np.array([2.0])) is None


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_handlers_of_signals_stay() -> None:
    def caught() -> str:
        status = Path("/proc/self/status").read_text()
        return next(line for line in status.splitlines() if line.startswith("SigCgt"))

    before = caught()
    block = (np.ones(1), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    solved = minimize(np.ones(1), [block], np.empty(0), np.ones(1))
    assert (solved.objective, caught()) == (1.0, before)
