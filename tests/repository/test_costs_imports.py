"""Cost models and lengths need neither torch nor the runtime."""

import ast
from pathlib import Path

import pytest
from folder_graph import list_imports
from fresh_python import run_python

import seqplan.costs

FOLDER = Path(seqplan.costs.__path__[0])
FILES = {path.relative_to(FOLDER).as_posix(): path for path in sorted(FOLDER.rglob("*.py"))}
HEAVY = ("torch", "seqplan.runtime", "seqplan.profiler")


@pytest.mark.parametrize("file", FILES)
def test_costs_import_neither_torch_nor_the_runtime(file: str) -> None:
    names = set(list_imports(ast.parse(FILES[file].read_text("utf-8"))))
    assert not {name for name in names for heavy in HEAVY if f"{name}.".startswith(f"{heavy}.")}


def test_there_is_something_to_check() -> None:
    assert {"profile.py", "fit/samples.py", "analytic/terms.py", "lengths/read.py"} <= set(FILES)


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys, seqplan.costs; print(*sys.modules)"
    loaded = set(run_python("-c", code).split())
    assert not {"torch", "numpy", "scipy", "seqplan.costs.profile"} & loaded
