"""Every package says what it is and what it offers."""

from __future__ import annotations

import ast
from pathlib import Path

from folder_graph import ROOT, TOPS


def test_every_package_has_a_docstring_and_names() -> None:
    bare = [
        face.relative_to(ROOT).as_posix()
        for top in ("seqplan", *TOPS)
        for face in sorted((ROOT / top).rglob("__init__.py"))
        if not _says_what_it_is(face)
    ]
    assert bare == []


def _says_what_it_is(face: Path) -> bool:
    """Whether the file has a docstring and an ``__all__``."""
    tree = ast.parse(face.read_text("utf-8"))
    targets = [
        target
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    return bool(ast.get_docstring(tree)) and "__all__" in names
