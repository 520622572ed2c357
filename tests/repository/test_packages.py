"""The packages: pyproject lists those that are there, and folders do not import in circles."""

import ast
import tomllib
from collections import Counter
from graphlib import CycleError
from pathlib import Path

import pytest
from folder_graph import ROOT, TOPS, Folders, floors, folder_graph, list_imports, modules

SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]

BELOW = {
    "plans": set(),
    "costs": {"plans"},
    "runtime": {"plans"},
    "planner": {"costs", "plans"},
    "profiler": {"costs", "runtime", "plans"},
    "api": {"planner", "profiler", "costs", "runtime", "plans"},
    "integrations": {"planner", "costs", "runtime", "plans"},
}
"""Folder → what it may import."""


def test_packages_are_the_folders_on_disk() -> None:
    names = {"seqplan"}
    for name, folder in SETUP["package-dir"].items():
        if name == "seqplan":
            continue
        for face in (ROOT / folder).rglob("__init__.py"):
            names.add(".".join((name, *face.parent.relative_to(ROOT / folder).parts)))
    assert sorted(SETUP["packages"]) == sorted(names)


def test_every_folder_with_code_is_a_package() -> None:
    bare = {
        path.parent.relative_to(ROOT).as_posix()
        for folder in SETUP["package-dir"].values()
        for path in (ROOT / folder).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    }
    assert bare == set()


@pytest.fixture(scope="module")
def graph() -> Folders:
    """The product's folders, read once."""
    return folder_graph()


def test_folders_do_not_import_in_circles(graph: Folders) -> None:
    assert len(floors(graph)) > len(TOPS)


def test_only_the_runtime_has_names_for_its_users() -> None:
    """A package that names modules below it closes a circle with those that import from it."""
    with_names = {
        face.relative_to(ROOT).parts[0]
        for top in TOPS
        for face in (ROOT / top).rglob("__init__.py")
        if "lazy_names" in face.read_text("utf-8")
    }
    assert with_names == {"runtime"}


def test_imports_go_down(graph: Folders) -> None:
    up = [
        f"{folder} → {other}"
        for folder, wanted in graph.items()
        for other in wanted
        if (above := folder.split("/")[0]) != (below := other.split("/")[0])
        and below not in BELOW[above]
    ]
    assert up == []


@pytest.mark.parametrize("top", ["costs", "runtime"])
def test_neither_costs_nor_runtime_name_another_package(top: str) -> None:
    """Not even for types; models of costs need no torch."""
    start = f"seqplan.{top}."
    files = {name: path for name, path in modules().items() if f"{name}.".startswith(start)}
    assert len(files) > 50
    allowed = ("seqplan.plans", f"seqplan.{top}", *(["torch"] if top == "runtime" else []))
    named = {
        f"{name}: {imported}"
        for name, path in files.items()
        for imported in list_imports(ast.parse(path.read_text("utf-8")))
        if imported.startswith(("seqplan.", "torch")) and not imported.startswith(allowed)
    }
    assert named == set()


def made_up(root: Path, files: dict[str, str]) -> Path:
    for top in TOPS:
        (root / top).mkdir()
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def test_a_circle_of_folders_is_found(tmp_path: Path) -> None:
    """Though no file imports itself by way of another."""
    files = {
        "planner/one/here.py": "from seqplan.planner.two.there import name",
        "planner/two/there.py": "name = 1",
        "planner/two/other.py": "def late():\n    import seqplan.planner.one.also",
        "planner/one/also.py": "",
    }
    graph = folder_graph(made_up(tmp_path, files))
    assert graph == {"planner/one": {"planner/two"}, "planner/two": {"planner/one"}}
    with pytest.raises(CycleError):
        floors(graph)


def test_a_circle_through_a_face_is_found(tmp_path: Path) -> None:
    """A package that imports from a folder below, whose files import from the package's folder."""
    files = {
        "planner/__init__.py": "from seqplan.planner.one.here import name",
        "planner/cluster.py": "",
        "planner/one/here.py": "from seqplan.planner.cluster import Cluster\nname = 1",
    }
    with pytest.raises(CycleError):
        floors(folder_graph(made_up(tmp_path, files)))


def test_test_files_have_names_of_their_own() -> None:
    """Pytest imports them by these: of two with one name it collects only the first."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, number in names.items() if number > 1] == []


def test_floors_of_a_sound_tree(tmp_path: Path) -> None:
    files = {
        "plans/plan.py": "",
        "planner/one/here.py": "from seqplan.plans import plan\nfrom seqplan.planner.two import x",
        "planner/two/__init__.py": "x = 1",
        "planner/two/there.py": "import seqplan.plans.plan",
    }
    order = floors(folder_graph(made_up(tmp_path, files)))
    assert order == [["plans"], ["planner/two"], ["planner/one"]]
