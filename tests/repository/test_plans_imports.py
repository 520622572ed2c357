"""The contract stands alone: importing any of it loads no torch, no solver, no other package."""

import pkgutil
import subprocess
import sys

import seqplan.plans

FOREIGN = {"torch", "scipy", "ortools", "pulp", "pandas", "fastapi"}
LATER = {"seqplan.costs", "seqplan.planner", "seqplan.runtime", "seqplan.api"}


def test_plans_imports_nothing_heavy() -> None:
    names = [
        module.name for module in pkgutil.walk_packages(seqplan.plans.__path__, "seqplan.plans.")
    ]
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not (FOREIGN | LATER) & set(completed.stdout.split())
