"""The contract stands alone: importing any of it loads no torch, no solver, no other package."""

import pkgutil

from fresh_python import run_python

import seqplan.plans

FOREIGN = {"torch", "scipy", "ortools", "pulp", "pandas", "fastapi"}
LATER = {"seqplan.costs", "seqplan.planner", "seqplan.runtime", "seqplan.api"}


def test_plans_imports_nothing_heavy() -> None:
    names = [
        module.name for module in pkgutil.walk_packages(seqplan.plans.__path__, "seqplan.plans.")
    ]
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    assert not (FOREIGN | LATER) & set(run_python("-c", code).split())
