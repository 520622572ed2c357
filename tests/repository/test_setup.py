"""What the repository is set up from: pins, version, changelog and the run script's stamp."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from seqplan.plans.version import VERSION

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==(\d+(\.\d+)*(b\d+)?)")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_constraints_are_plain_pins() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    bad = [line for line in lines if not PIN.fullmatch(line)]
    assert not bad, "one name==version a line, no local label, no hash"
    names = [_normal(line.partition("==")[0]) for line in lines]
    assert names == sorted(set(names))
    assert not [name for name in names if name.startswith(("nvidia", "triton"))]


def test_every_declared_dependency_is_pinned() -> None:
    project = _project()
    declared = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        declared += extra
    wanted = {_normal(re.match(r"[A-Za-z0-9._-]+", line)[0]) for line in declared}  # type: ignore[index]
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert wanted <= {_normal(line.partition("==")[0]) for line in pins}


def test_the_changelog_begins_with_this_version() -> None:
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert heading[1] == VERSION


_STAMPED = ("pyproject.toml", "constraints.txt", "planner/placement/fill_kernel.c")
_NO_PYTHON = "run: no Python 3.11 or newer"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what ``run`` reads, with an interpreter in place of which echo answers."""
    (tmp_path / "planner" / "placement").mkdir(parents=True)
    for name in ("run", *_STAMPED):
        shutil.copy(ROOT / name, tmp_path / name)
    scripts = tmp_path / ".venv" / "bin"
    scripts.mkdir(parents=True)
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("version = 3.11.7\n")
    for name in ("python", "seqplan"):
        (scripts / name).write_text('#!/bin/sh\necho "$0" "$@"\nexit 7\n')
        (scripts / name).chmod(0o755)
    return tmp_path


def _run(checkout: Path, *arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [shutil.which("bash") or "bash", str(checkout / "run"), *arguments],
        capture_output=True,
        text=True,
        cwd="/",
        env={"PATH": path},
        check=False,
    )


@pytest.fixture
def tools_without_python(tmp_path: Path) -> str:
    """A PATH with the script's tools but no Python, so that a set-up ends at once."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for tool in ("readlink", "cat", "sh"):
        program = shutil.which(tool)
        assert program is not None
        (folder / tool).symlink_to(program)
    return str(folder)


def _write_stamp(checkout: Path) -> None:
    scripts = checkout / ".venv" / "bin"
    parts = [str(checkout), str(scripts / "python"), "version = 3.11.7"]
    parts += [(checkout / name).read_text().rstrip("\n") for name in _STAMPED]
    (checkout / ".venv" / "stamp").write_text("\n".join(parts) + "\n")


@pytest.mark.skipif(os.name != "posix", reason="bash")
def test_a_good_stamp_starts_the_command_at_once(checkout: Path, tools_without_python: str) -> None:
    _write_stamp(checkout)
    completed = _run(checkout, "seqplan", "plan", "a b", path=tools_without_python)
    assert completed.returncode == 7
    assert completed.stdout == f"{checkout}/.venv/bin/seqplan plan a b\n"
    assert completed.stderr == ""
    completed = _run(checkout, "demo", path=tools_without_python)
    assert completed.stdout == f"{checkout}/.venv/bin/seqplan demo\n"


@pytest.mark.skipif(os.name != "posix", reason="bash")
@pytest.mark.parametrize("damage", ["no stamp", *_STAMPED, "python"])
def test_anything_else_is_set_up_again(
    checkout: Path, tools_without_python: str, damage: str
) -> None:
    if damage != "no stamp":
        _write_stamp(checkout)
    if damage == "python":
        (checkout / ".venv" / "bin" / "python").unlink()
    elif damage in _STAMPED:
        with (checkout / damage).open("a") as file:
            file.write("# changed\n")
    completed = _run(checkout, "demo", path=tools_without_python)
    assert completed.returncode == 1
    assert completed.stderr.startswith(_NO_PYTHON)
    assert completed.stderr.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="bash")
def test_unknown_commands_are_usage_errors(checkout: Path, tools_without_python: str) -> None:
    assert _run(checkout, path=tools_without_python).returncode == 2
    assert _run(checkout, "dmo", path=tools_without_python).returncode == 2
    assert _run(checkout, "help", path=tools_without_python).returncode == 0
