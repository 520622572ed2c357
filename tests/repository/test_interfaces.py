"""``docs/interfaces.csv``: every option, route and public Python name, with its test."""

import argparse
import csv
import importlib
from pathlib import Path

import pytest

from seqplan.api.cli import build_parser

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "interfaces.csv"
PACKAGES = (
    *("seqplan", "seqplan.runtime", "seqplan.huggingface"),
    *("seqplan.runtime.checkpoint", "seqplan.runtime.data", "seqplan.runtime.errors"),
    *("seqplan.runtime.losses", "seqplan.runtime.models", "seqplan.runtime.sequence_parallel"),
    *("seqplan.runtime.sources", "seqplan.runtime.training"),
)


def rows() -> list[dict[str, str]]:
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def options_of(parser: argparse.ArgumentParser, command: str = "") -> set[str]:
    options: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                options |= options_of(below, f"{command} {name}".strip())
        elif not {"--help", "--version"} & set(action.option_strings):
            long = [o for o in action.option_strings if o.startswith("--")]
            options.add(f"{command} {long[0] if long else action.metavar}")
    return options


def test_every_interface_is_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    paths = importlib.import_module("generate").read_openapi()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    names = {
        f"{package}.{name}"
        for package in PACKAGES
        for name in getattr(importlib.import_module(package), "__all__", ())
    }
    there = {
        kind: {row["new"] for row in rows() if row["kind"] == kind}
        for kind in ("option", "route", "name")
    }
    assert there == {"option": options_of(build_parser({})), "route": routes, "name": names}


def test_every_interface_has_an_old_name_and_a_test() -> None:
    for row in rows():
        assert all(row.values()), row
        assert row["old"] == "(new)" or not row["old"].startswith("("), row
        path = ROOT / row["test"]
        assert path.is_file(), row
        if row["kind"] == "option" and " --" in row["new"]:
            option = row["new"].rpartition(" ")[2]
            text = path.read_text("utf-8")
            assert option in text or (option == "--output" and '"-o"' in text), row
