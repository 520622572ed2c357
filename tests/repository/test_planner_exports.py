"""The faces of planner/ and plans/: every name they list is there, and asking for none is cheap."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import seqplan.planner
import seqplan.plans

ROOT = Path(__file__).parents[2]
TOPS = (seqplan.planner, seqplan.plans)
ROOMS = sorted(
    ".".join(("seqplan", *face.parent.relative_to(ROOT).parts))
    for top in ("planner", "plans")
    for face in (ROOT / top).glob("*/__init__.py")
)
HEAVY = ("numpy", "scipy", "torch", "pulp")


@pytest.mark.parametrize("top", TOPS, ids=lambda top: top.__name__)
def test_every_public_name_is_there(top: ModuleType) -> None:
    assert list(top.__all__) == sorted(top.__all__)
    for name in top.__all__:
        assert getattr(top, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Plam'"):
        _ = top.Plam


@pytest.mark.parametrize("top", TOPS, ids=lambda top: top.__name__)
def test_no_public_name_hides_a_module(top: ModuleType) -> None:
    for name in top.__all__:
        assert find_spec(f"{top.__name__}.{name}") is None


def test_packages_are_found() -> None:
    assert "seqplan.planner.bounds" in ROOMS
    assert "seqplan.plans.views" in ROOMS


def test_importing_a_face_loads_nothing_heavy() -> None:
    """Not even the modules behind it: commands that plan nothing should not wait for them."""
    rooms = "".join(f"import {room}\n" for room in ROOMS)
    code = f"import sys, seqplan.planner, seqplan.plans\n{rooms}print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(run.stdout.split())
    assert not modules & set(HEAVY)
    ours = {name for name in modules if name.startswith("seqplan")}
    of_faces = {"seqplan.plans.lazy_exports", "seqplan.plans.version", "seqplan.whole_package"}
    assert ours == {"seqplan", "seqplan.planner", "seqplan.plans", *of_faces, *ROOMS}
