"""The graph of folders by their imports: ``python tests/repository/folder_graph.py`` prints it.

A package's ``__init__.py`` is its face and belongs to its folder: one that loads the names below it
on first use imports none of them, any other may close a circle.
"""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOPS = ("plans", "costs", "profiler", "planner", "runtime", "api", "integrations")
Folders = dict[str, set[str]]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the product by its dotted name; a face has that of its package."""
    return {
        ".".join(("seqplan", *path.relative_to(root).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for top in TOPS
        for path in sorted((root / top).rglob("*.py"))
    }


def imports_of(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, wherever the import stands; not what only types need.

    A plan names the type of its rank views, which are made by a module that reads plans.
    """
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
            node.body = [] if node.test.id == "TYPE_CHECKING" else node.body
    return list_imports(tree)


def list_imports(tree: ast.AST) -> Iterator[str]:
    """The dotted names of all imports, which are absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def folder_graph(root: Path = ROOT) -> Folders:
    """For each folder the other folders that its files import from.

    An import through a face counts as one from the face's folder.
    """
    known = modules(root)
    folders = {path.parent for path in known.values()}
    named = {".".join(("seqplan", *f.relative_to(root).parts)): f for f in folders}
    graph: Folders = {folder.relative_to(root).as_posix(): set() for folder in folders}
    for path in known.values():
        here = path.parent.relative_to(root).as_posix()
        for name in imports_of(path):
            folder = known[name].parent if name in known else named.get(name)
            if folder is not None:
                graph[here].add(folder.relative_to(root).as_posix())
    return {folder: wanted - {folder} for folder, wanted in graph.items()}


def floors(graph: Folders) -> list[list[str]]:
    """The folders by floor: each imports only from floors below; ``CycleError`` for a circle."""
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    storeys = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        storeys.append(ready)
        sorter.done(*ready)
    return storeys


if __name__ == "__main__":
    drawn = folder_graph()
    for number, storey in reversed(list(enumerate(floors(drawn)))):
        for folder in storey:
            print(f"{number:2}  {folder:28} → {', '.join(sorted(drawn[folder])) or '—'}")
