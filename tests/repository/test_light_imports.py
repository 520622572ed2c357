"""Modules that imports and commands must not load."""

import pkgutil
from pathlib import Path

from folder_graph import ROOT, modules
from fresh_python import run_python

import seqplan.plans
from seqplan.api.cli.framework.commands import GROUPS

ROOMS = sorted(
    name
    for name, path in modules().items()
    if path.parents[2] == ROOT and name.startswith(("seqplan.planner.", "seqplan.plans."))
    if path.name == "__init__.py"
)
HELP = """import contextlib, io
from seqplan.api.cli import build_parser, main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main([*{!r}.split(), "--help"])"""
PLAN = """planner = seqplan.Planner.from_profile("llama-7b-a800-80gb", 8, 8192, prove=False)
planner.plan([700, 2900] * 20)
seqplan.balance([5, 6, 7], 2, 16, seqplan.Cost(0.0, 1.0, 1.0))"""
LISTS = "numpy torch seqplan.planner seqplan.runtime"
HEAVY = "torch ortools pulp fastapi pyarrow scipy.optimize"


def check_steps(*steps: tuple[str, str]) -> None:
    """Run steps in one new process: none loads the modules that stand next to it."""
    lines = ["import sys"]
    for code, absent in steps:
        lines += [
            code,
            f"found = {set(absent.split())} & sys.modules.keys()",
            "assert not found, found",
        ]
    run_python("-c", "\n".join(lines))


def test_names_commands_and_plans_load_what_they_use(tmp_path: Path) -> None:
    """A later step may load more: an earlier one would show its modules first."""
    (tmp_path / "a.txt").write_text("5\n")
    read = f"seqplan.costs.lengths.read_lengths([{str(tmp_path / 'a.txt')!r}])"
    check_steps(
        ("import seqplan; dir(seqplan)", "numpy scipy torch seqplan.planner"),
        ("import seqplan.costs", "numpy scipy torch seqplan.costs.profile"),
        *((HELP.format(group), LISTS) for group in ("", *GROUPS)),
        ("import seqplan.runtime; dir(seqplan.runtime)", "torch"),
        (f"import seqplan.costs.lengths; {read}", "torch pyarrow tokenizers scipy ortools"),
        ("build_parser({}).format_help()", HEAVY),
        ("import seqplan.api.cli.check.check_training", "torch"),
        (PLAN, "torch scipy ortools"),
    )


def test_packages_of_the_planner_load_no_module_below_them() -> None:
    """Commands that plan nothing should not wait for them."""
    assert {"seqplan.planner.bounds", "seqplan.plans.views"} <= set(ROOMS)
    faces = ["seqplan.planner", "seqplan.plans", *ROOMS]
    code = f"import sys, {', '.join(faces)}; print(*sys.modules)"
    loaded = set(run_python("-c", code).split())
    assert not loaded & {"numpy", "scipy", "torch", "pulp"}
    of_faces = {"seqplan.plans.lazy_exports", "seqplan.plans.version", "seqplan.whole_package"}
    ours = {name for name in loaded if name.startswith("seqplan")}
    assert ours == {"seqplan", *of_faces, *faces}


def test_plans_stand_alone_and_the_runtime_needs_them_alone() -> None:
    """The runtime's modules for transformers, which take seconds to import, are read only."""
    plans = [of.name for of in pkgutil.walk_packages(seqplan.plans.__path__, "seqplan.plans.")]
    names = [name for name in modules() if name.startswith("seqplan.runtime.")]
    names = [name for name in names if "__" not in name and ".huggingface." not in name]
    others = "seqplan.planner seqplan.costs seqplan.api ortools pulp fastapi"
    check_steps(
        (f"import {', '.join(plans)}", f"{others} seqplan.runtime torch scipy pandas"),
        (f"import {', '.join(names)}", f"{others} torch._dynamo sympy"),
    )
