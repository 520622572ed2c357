"""CBC through pulp, with the meaning of its status.

CBC reports "Optimal" when it stops at its time limit with a solution in hand; only ``sol_status``
distinguishes the two, and only its log states the bound. Its files live in a separate directory,
and the time limit also ends a CBC whose parent was killed.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from math import inf
from pathlib import Path

import pulp

_BOUND = re.compile(r"^Lower bound:\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class CbcAnswer:
    """Whether the variables hold a solution, and a proven optimum; none is below ``bound``."""

    has_solution: bool
    optimal: bool
    bound: float


def minimise(problem: pulp.LpProblem, time_limit_s: float) -> CbcAnswer:
    """Solve a minimization; ``bound`` is −inf where CBC stated none, +inf if it is infeasible."""
    with tempfile.TemporaryDirectory(prefix="seqplan-cbc-") as folder:
        log = Path(folder) / "cbc.log"
        solver = pulp.COIN_CMD(
            path=pulp.PULP_CBC_CMD.pulp_cbc_path,  # the CBC that comes with pulp
            msg=False,
            timeLimit=time_limit_s,
            logPath=str(log),
        )
        solver.tmpDir = folder
        problem.solve(solver)
        stated = _BOUND.search(log.read_text(encoding="utf-8", errors="replace"))
    if problem.sol_status == pulp.LpSolutionOptimal:
        return CbcAnswer(True, True, float(pulp.value(problem.objective)))
    if problem.sol_status == pulp.LpSolutionInfeasible and problem.status == -1:
        return CbcAnswer(False, True, inf)
    has_solution = problem.sol_status == pulp.LpSolutionIntegerFeasible
    return CbcAnswer(has_solution, False, float(stated[1]) if stated else -inf)
