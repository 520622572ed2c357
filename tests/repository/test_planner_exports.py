"""Importing the packages of planner/ and plans/ is cheap."""

from pathlib import Path

from fresh_python import run_python

ROOT = Path(__file__).parents[2]
ROOMS = sorted(
    ".".join(("seqplan", *face.parent.relative_to(ROOT).parts))
    for top in ("planner", "plans")
    for face in (ROOT / top).glob("*/__init__.py")
)
HEAVY = ("numpy", "scipy", "torch", "pulp")


def test_packages_are_found() -> None:
    assert "seqplan.planner.bounds" in ROOMS
    assert "seqplan.plans.views" in ROOMS


def test_importing_a_face_loads_nothing_heavy() -> None:
    """No modules below it: commands that plan nothing should not wait for them."""
    rooms = "".join(f"import {room}\n" for room in ROOMS)
    code = f"import sys, seqplan.planner, seqplan.plans\n{rooms}print(*sys.modules)"
    modules = set(run_python("-c", code).split())
    assert not modules & set(HEAVY)
    ours = {name for name in modules if name.startswith("seqplan")}
    of_faces = {"seqplan.plans.lazy_exports", "seqplan.plans.version", "seqplan.whole_package"}
    assert ours == {"seqplan", "seqplan.planner", "seqplan.plans", *of_faces, *ROOMS}
