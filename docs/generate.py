"""Parts of the site that follow from the code, made while the site is built.

- ``commands``: the output of ``seqplan COMMAND --help``, 80 columns wide.
- ``routes``: every route of the HTTP interface, from its OpenAPI document.
- ``api``: the public names of the packages, with their docstrings.
- ``contexts``, ``scaling``: charts of results, from the files of ``data``.

A page has ``<!-- generated: PART -->`` in their place; ``conf.py`` replaces it.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from charts import draw_contexts, draw_scaling

RUNTIME = (
    *("checkpoint", "data", "errors", "losses", "models"),
    *("sequence_parallel", "sources", "training"),
)
FACES = (
    *("seqplan", "seqplan.huggingface", "seqplan.runtime"),
    *(f"seqplan.runtime.{name}" for name in RUNTIME),
    *("seqplan.plans", "seqplan.costs", "seqplan.profiler", "seqplan.planner"),
    *("seqplan.api", "seqplan.integrations"),
)
"""Packages and modules that may list public names."""

COLUMNS = "80"


def list_commands() -> str:
    """Return a section for each command with its help."""
    from seqplan.api.cli import COMMANDS

    return "\n\n".join(f"### {name}\n\n```text\n{help_of(name)}\n```" for name in COMMANDS)


def help_of(command: str) -> str:
    """Return the output of ``seqplan COMMAND --help``, for any environment of this process."""
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


def list_routes() -> str:
    """Return a table of every method and path, then a section for each with its parameters."""
    operations = [
        (f"{method.upper()} {path}", about)
        for path, methods in read_openapi()["paths"].items()
        for method, about in methods.items()
    ]
    rows = [f"| `{name}` | {_sentence(about['description'])} |" for name, about in operations]
    parts = ["\n".join(["| route | effect |", "|---|---|", *rows])]
    for name, about in operations:
        if lines := list(_describe_operation(about)):
            parts += [f"## `{name}`", "\n".join(["| | | |", "|---|---|---|", *lines])]
    return "\n\n".join(parts)


def _describe_operation(about: dict[str, Any]) -> Iterator[str]:
    """Yield a row for each parameter and each status of success."""
    for parameter in about.get("parameters", ()):
        name = f"`{parameter['name']}`"
        kind = f"{parameter['in']}, required" if parameter.get("required") else parameter["in"]
        yield f"| {name} | {kind} | {_cell(parameter.get('description', ''))} |"
    if "requestBody" in about:
        kinds = ", ".join(f"`{kind}`" for kind in about["requestBody"]["content"])
        yield f"| body | required | {kinds} |"
    for status, answer in about["responses"].items():
        if status.startswith("2"):
            yield f"| {status} | response | {_cell(answer.get('description', ''))} |"


def read_openapi() -> dict[str, Any]:
    """Return the OpenAPI document of a service on an empty store."""
    from seqplan.api.rest.app import make_app
    from seqplan.api.rest.middleware.tokens import Access
    from seqplan.api.service.service import Service
    from seqplan.api.store.store import Store

    with tempfile.TemporaryDirectory() as folder:
        store = Store(str(Path(folder) / "store.db"), None)
        try:
            return make_app(Service(store), Access()).openapi()
        finally:
            store.close()


def list_names() -> str:
    """Return a section for each package: a table of its public names, then each in full."""
    parts = []
    documented: dict[int, str] = {}
    for face in FACES:
        package = importlib.import_module(face)
        public = getattr(package, "__all__", ())
        about = {name: _about(package, name) for name in public}
        directives = [_document(package, name, documented) for name in public]
        rows = []
        for name in public:
            place = documented.get(id(getattr(package, name)))
            shown = f"{{py:obj}}`{name} <{place}>`" if place else f"`{name}`"
            rows.append(f"| {shown} | {about[name]} |")
        if rows:
            parts += [f"## {face}", "\n".join(["| name | |", "|---|---|", *rows])]
            parts += filter(None, directives)
    return "\n\n".join(parts)


def _document(package: ModuleType, name: str, documented: dict[int, str]) -> str | None:
    """Return a directive for autodoc; None for constants, modules and documented names."""
    value = getattr(package, name)
    if id(value) in documented or not (inspect.isclass(value) or inspect.isroutine(value)):
        return None
    documented[id(value)] = f"{package.__name__}.{name}"
    kind = "class" if inspect.isclass(value) else "function"
    lines = [f".. auto{kind}:: {package.__name__}.{name}"]
    if inspect.isclass(value) and not issubclass(value, BaseException):
        lines += ["   :members:"]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def _about(package: ModuleType, name: str) -> str:
    if not hasattr(package, name):  # a package that lists modules does not import them
        importlib.import_module(f"{package.__name__}.{name}")
    value = getattr(package, name)
    if inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value):
        return _sentence(inspect.getdoc(value) or "")
    return f"a constant, {type(value).__name__}"


def _sentence(text: str) -> str:
    """Return the first sentence of a docstring, as it fits a table."""
    first = _cell(text.strip().split("\n\n")[0].replace("``", "`"))
    sentence = re.match(r".*?[.](?= [A-Z]|$)", first)
    return sentence[0] if sentence else first


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


PARTS: dict[str, Callable[[], str]] = {
    "commands": list_commands,
    "routes": list_routes,
    "api": list_names,
    "contexts": draw_contexts,
    "scaling": draw_scaling,
}
"""Part → the function that makes its text, in Markdown."""
