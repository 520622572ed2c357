"""Plan files: JSON Lines, one plan for each step, steps ascending, one world size."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from seqplan.plans.format.atomic_file import atomic_write
from seqplan.plans.format.codec import PlanError, from_json, to_json
from seqplan.plans.format.documents import name_document
from seqplan.plans.format.fields import LONGEST, name_document_of
from seqplan.plans.lint import lint
from seqplan.plans.plan import Plan


def read_plans(path: str | os.PathLike[str], *, strict: bool = True) -> Iterator[Plan]:
    """Read the plans of a file, one line at a time: memory holds one plan.

    ``PlanError`` names file and line of a text that is not a plan, a truncated line, a step that
    does not ascend or another world size; ``OSError`` when the file cannot be read, at the first
    requested plan. ``strict`` as for ``from_json``.
    """
    previous: Plan | None = None
    with open(path, "rb") as file:
        for number, line in enumerate(iter(partial(file.readline, LONGEST), b""), start=1):
            origin = f"{Path(path)}:{number}"
            if len(line) == LONGEST:
                raise PlanError(f"{origin}: has {LONGEST:,} bytes or more. Name a plan file")
            try:
                plan = from_json(line, strict=strict, origin=origin)
            except PlanError:
                if number == 1 and line.strip() in (b"{", b"["):
                    _reject_document(Path(path))
                raise
            _check_follows(plan, previous, origin)
            previous = plan
            yield plan


def _reject_document(path: Path) -> None:
    """Raise ``PlanError`` if a file is one document on several lines."""
    document = name_document_of(path)
    if document == "a plan":
        raise PlanError(f"{path}: has a plan on several lines. Write each on one line") from None
    if document is not None:
        raise PlanError(f"{path}: is {document}, not a plan. Name another file") from None


@contextmanager
def write_plans(path: str | os.PathLike[str]) -> Iterator[Callable[[Plan], None]]:
    """Give a function that appends a plan; the file appears when the block ends without an error.

    ``PlanError`` for a plan that ``read_plans`` would reject after the one before; nothing is
    left behind then.
    """
    previous: Plan | None = None
    with atomic_write(path, "wb") as file:

        def write(plan: Plan) -> None:
            nonlocal previous
            _check_follows(plan, previous, f"{Path(path)}")
            file.write(to_json(plan).encode() + b"\n")
            previous = plan

        yield write


def _check_follows(plan: Plan, previous: Plan | None, origin: str) -> None:
    if previous is None:
        return
    if plan.step <= previous.step:
        raise PlanError(
            f"{origin}: step: {plan.step} does not follow step {previous.step}. Order the steps"
        )
    if plan.world_size != previous.world_size:
        raise PlanError(
            f"{origin}: world_size: {plan.world_size}, "
            f"but {previous.world_size} at step {previous.step}"
            ". Write them to separate files"
        )


def check_replaceable(path: Path | None) -> None:
    """Check that a file to write plans to is new, is empty or has plans. ``ValueError``."""
    if path is None or not path.is_file():
        return
    with path.open("rb") as file:
        first = file.readline(LONGEST)
    try:
        has_plans = not first or name_document(json.loads(first)) == "a plan"
    except (ValueError, RecursionError):
        has_plans = False
    if not has_plans:
        raise ValueError(f"{path}: exists, and has no plans. Name another file, or remove it")


def check_sound(plan: Plan, origin: str) -> None:
    """Check the rules of the format between fields. ``PlanError`` with the first broken one."""
    if broken := lint(plan, None):
        more = f" ({len(broken) - 1} more)" if len(broken) > 1 else ""
        raise PlanError(
            f"{origin}: breaks a rule of the format: {broken[0]}{more}. "
            "seqplan check plans FILE lists all of them"
        )


def find_step(path: Path, step: int) -> Plan:
    """Read the plan of one step; ``ValueError`` with the steps there are when it is missing."""
    steps: list[int] = []
    for plan in read_plans(path):
        if plan.step == step:
            return plan
        steps.append(plan.step)
    if not steps:
        steps_there = "it has none"
    elif len(steps) == 1:
        steps_there = f"it has step {steps[0]}"
    else:
        steps_there = f"it has steps {steps[0]} to {steps[-1]}"
    raise ValueError(f"{path}: no step {step}; {steps_there}")
