"""The generated parts of the documentation: ``python docs/generate.py`` writes them anew.

- ``command-line.md``: the output of ``seqplan COMMAND --help``, 80 columns wide.
- ``service.md``: every route of the interface, from the OpenAPI document of a running service.
- ``architecture.md``: the public names of the packages, with the first sentence of each.

In a page a part stands between ``<!-- generated: PART -->`` and ``<!-- end of PART -->``.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "tests" / "api"))

from service_process import serving  # noqa: E402

RUNTIME = (
    *("checkpoint", "data", "errors", "losses", "models"),
    *("sequence_parallel", "sources", "training"),
)
FACES = (
    *("seqplan", "seqplan.huggingface", "seqplan.plans", "seqplan.costs", "seqplan.profiler"),
    *("seqplan.planner", "seqplan.runtime", *(f"seqplan.runtime.{name}" for name in RUNTIME)),
    *("seqplan.api", "seqplan.integrations"),
)
"""Packages and modules that may list public names."""

COLUMNS = "80"


def commands() -> str:
    """A section for each command with its help."""
    from seqplan.api.cli import COMMANDS

    return "\n\n".join(f"### {name}\n\n```text\n{help_of(name)}\n```" for name in COMMANDS)


def help_of(command: str) -> str:
    """The output of ``seqplan COMMAND --help``, for any environment of this process."""
    from seqplan.api.cli import build_parser

    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = COLUMNS
    try:
        parser = build_parser({}, [command])
        for word in command.split():
            choices = parser._actions[-1].choices
            assert isinstance(choices, dict)
            parser = choices[word]
        return parser.format_help().strip()
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


def routes() -> str:
    """A table of every method and path with the first sentence of what it says of itself."""
    rows = [
        f"| `{method.upper()} {path}` | {_sentence(about.get('description', ''))} |"
        for path, methods in openapi()["paths"].items()
        for method, about in methods.items()
    ]
    return "\n".join(["| route | what it does |", "|---|---|", *rows])


def openapi() -> dict[str, Any]:
    """The OpenAPI document of a service on an empty store."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serving("--store", Path(folder) / "store.db", "--port", 0) as served,
    ):
        document: dict[str, Any] = served.ok("GET", "/openapi.json")
        return document


def names() -> str:
    """A table for each package that names what is public."""
    parts = []
    for face in FACES:
        package = importlib.import_module(face)
        public = getattr(package, "__all__", ())
        rows = [f"| `{name}` | {_about(package, name)} |" for name in public]
        if rows:
            parts.append("\n".join([f"| `{face}` | |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _about(package: ModuleType, name: str) -> str:
    if not hasattr(package, name):  # a face that lists modules does not import them
        importlib.import_module(f"{package.__name__}.{name}")
    value = getattr(package, name)
    if inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value):
        return _sentence(inspect.getdoc(value) or "")
    return f"a constant, {type(value).__name__}"


def _sentence(text: str) -> str:
    """The first sentence of a docstring, as it fits a table."""
    first = " ".join(text.strip().split("\n\n")[0].replace("``", "`").split())
    sentence = re.match(r".*?[.](?= [A-Z]|$)", first)
    return (sentence[0] if sentence else first).replace("|", r"\|")


PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "commands": ("command-line.md", commands),
    "routes": ("service.md", routes),
    "names": ("architecture.md", names),
}
"""Part → (page, what writes it)."""


def written(part: str, text: str) -> str:
    """The page ``text`` with this part as it should be."""
    begin, end = f"<!-- generated: {part} -->\n", f"\n<!-- end of {part} -->"
    before, opened, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise ValueError(f"{PARTS[part][0]} has no place for {part}. Add {begin!r} and {end!r}")
    return f"{before}{begin}{PARTS[part][1]()}{end}{after}"


def main() -> None:
    """Write every part into its page."""
    for part, (page, _) in PARTS.items():
        path = DOCS / page
        path.write_text(written(part, path.read_text("utf-8")), "utf-8")
        print(f"{path.relative_to(ROOT)}: {part}")


if __name__ == "__main__":
    main()
