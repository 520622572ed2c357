"""Every package has a docstring, and those with public names list them."""

import ast

from folder_graph import ROOT, TOPS


def test_every_package_has_a_docstring() -> None:
    bare = [
        face.relative_to(ROOT).as_posix()
        for top in ("seqplan", *TOPS)
        for face in sorted((ROOT / top).rglob("__init__.py"))
        if not ast.get_docstring(ast.parse(face.read_text("utf-8")))
    ]
    assert bare == []
