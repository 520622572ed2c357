"""Imports of the runtime, and their time: torch only when it is used."""

import ast
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

import pytest
from folder_graph import list_imports
from fresh_python import run_python

import seqplan.runtime

FOLDER = Path(seqplan.runtime.__path__[0])
FILES = {
    ".".join(path.relative_to(FOLDER).with_suffix("").parts): path for path in FOLDER.rglob("*.py")
}
MODULES = sorted(FILES)
NAMESPACES = [
    import_module(f"seqplan.runtime.{name}")
    for name in seqplan.runtime.__all__
    if find_spec(f"seqplan.runtime.{name}") is not None
]
"""Packages and modules of the runtime that are public themselves."""


@pytest.mark.parametrize("module", MODULES)
def test_the_runtime_knows_the_plan_format_alone(module: str) -> None:
    of_ours = {
        name
        for name in list_imports(ast.parse(FILES[module].read_text("utf-8")))
        if name.startswith("seqplan")
    }
    foreign = {
        name for name in of_ours if not name.startswith(("seqplan.plans", "seqplan.runtime"))
    }
    assert not foreign - {"seqplan"}


def loaded(code: str) -> set[str]:
    """Modules that a process has after running ``code``."""
    printed = run_python("-c", f"{code}\nimport sys; print(*sys.modules)")
    return set(printed.splitlines()[-1].split())


def test_importing_the_package_does_not_import_torch() -> None:
    assert "torch" not in loaded("import seqplan.runtime; dir(seqplan.runtime)")


def test_help_does_not_import_torch() -> None:
    code = "from seqplan.api.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit: pass"
    modules = loaded(code)
    assert "seqplan.api.cli" in modules
    assert not {"torch", "seqplan.runtime"} & modules


def test_everything_imported_needs_plans_alone() -> None:
    """Loading every module loads no solver, no other package, no service, no compiler of torch.

    Those for models of transformers, which take seconds to import, are read only (above).
    """
    names = [n for n in MODULES if "__" not in n and not n.startswith("huggingface.")]
    modules = loaded("\n".join(f"import seqplan.runtime.{name}" for name in names))
    assert "torch" in modules
    assert not {"seqplan.planner", "seqplan.costs", "seqplan.api"} & modules
    assert not {"ortools", "pulp", "fastapi", "torch._dynamo", "sympy"} & modules


def test_every_public_name_is_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Lama'"):
        _ = seqplan.runtime.Lama
    for package in (seqplan.runtime, *NAMESPACES):
        assert list(package.__all__) == sorted(package.__all__)
        for name in package.__all__:
            value = getattr(package, name)
            public_name = f"{package.__name__}.{name}" if value in NAMESPACES else name
            assert value.__name__ == public_name


def test_top_level_has_at_most_20_names() -> None:
    assert len(seqplan.runtime.__all__) <= 20


def test_a_name_is_public_in_one_place() -> None:
    public = [name for package in (seqplan.runtime, *NAMESPACES) for name in package.__all__]
    assert [name for name, count in Counter(public).items() if count > 1] == []


def test_no_public_name_is_that_of_a_submodule() -> None:
    """Importing the submodule would put it in the place of the name."""
    for package in (seqplan.runtime, *NAMESPACES):
        folder = package.__path__ if hasattr(package, "__path__") else []
        submodules = {module.name for module in iter_modules(folder)}
        names = {name for name in package.__all__ if getattr(package, name) not in NAMESPACES}
        assert not submodules & names
