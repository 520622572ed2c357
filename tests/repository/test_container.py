"""The container's files, as far as they can be judged without building an image."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from seqplan.api.cli import build_parser
from seqplan.api.cli.framework.job_file import read_job_file
from seqplan.costs.lengths import read_lengths
from seqplan.costs.shipped.catalogue import find_profile

ROOT = Path(__file__).parents[2]


@cache
def instructions() -> list[tuple[str, str]]:
    """(instruction, its text) in order, continued lines joined, comments left out."""
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    words = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(name, rest) for name, rest in words]


def texts(name: str) -> list[str]:
    return [rest for word, rest in instructions() if word == name]


def test_packages_of_ranks_are_left_out() -> None:
    """The image has the package and its PostgreSQL store at the pinned versions, without torch."""
    project: Any = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = project["dependencies"] + project["optional-dependencies"]["postgresql"]
    assert not [line for line in declared if line.startswith(("torch", "pulp"))]
    (install,) = (text for text in texts("RUN") if "pip install" in text)
    assert install.endswith('pip install --no-cache-dir -c constraints.txt ".[postgresql]"')


def test_the_build_gets_the_sources_of_the_package() -> None:
    """``COPY . .`` less what .dockerignore names."""
    ignored = (ROOT / ".dockerignore").read_text("utf-8").split()
    project: Any = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    folders = {
        path.partition("/")[0] for path in project["tool"]["setuptools"]["package-dir"].values()
    }
    needed = folders | {"pyproject.toml", "constraints.txt"}
    needed |= {project["project"]["readme"], *project["project"]["license-files"]}
    assert all((ROOT / name).exists() for name in needed)
    assert not [p for p in ignored for name in needed if Path(name).match(p.removeprefix("**/"))]
    assert {".git", ".venv", "out", "tests"} <= set(ignored)


def test_the_last_stage_is_copied_from_the_first() -> None:
    stages = [rest for name, rest in instructions() if name == "FROM"]
    assert [re.fullmatch(r"python:3\.11-slim( AS build)?", stage) is not None for stage in stages]
    assert len(stages) == 2
    copies = texts("COPY")
    assert copies[-1] == "--from=build /opt/seqplan /opt/seqplan"
    assert f"python -m venv {copies[-1].split()[1]}" in texts("RUN")[0]
    assert "/opt/seqplan/bin:$PATH" in texts("ENV")[0]


def test_hadolint_has_nothing_to_say() -> None:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("no hadolint for this platform")
    completed = subprocess.run([program, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (completed.returncode, completed.stdout) == (0, "")


def test_the_service_is_not_root() -> None:
    (user,) = texts("USER")
    uid, _, gid = user.partition(":")
    assert int(uid) >= 1000
    assert int(gid) >= 1000
    (volume,) = texts("VOLUME")
    command = next(text for text in texts("RUN") if text.startswith("install "))
    assert shlex.split(command)[-5:] == ["--owner", uid, "--group", gid, volume]
    last = [name for name, _ in instructions()]
    assert last.index("USER") < last.index("CMD")


def test_the_default_command_parses_and_keeps_its_store_in_the_volume() -> None:
    (command,) = texts("CMD")
    program, *arguments = json.loads(command)
    assert program == "seqplan"
    args = build_parser({}).parse_args(arguments)
    assert args.host == "0.0.0.0"
    assert args.store.startswith(texts("VOLUME")[0] + "/")
    assert str(args.port) == texts("EXPOSE")[0]


def test_the_health_check_asks_the_served_port_with_the_standard_library() -> None:
    (check,) = texts("HEALTHCHECK")
    program, option, code = json.loads(check.partition("CMD ")[2])
    assert (program, option) == ("python", "-c")
    assert f"http://127.0.0.1:{texts('EXPOSE')[0]}/healthz" in code
    modules = re.findall(r"import (\w+)", code)
    assert modules
    assert set(modules) <= sys.stdlib_module_names
    # Nothing listens on port 1: a service that does not answer is an unhealthy one.
    rejected = code.replace(f":{texts('EXPOSE')[0]}/", ":1/")
    completed = subprocess.run([sys.executable, "-c", rejected], capture_output=True, check=False)
    assert completed.returncode == 1


def test_compose_serves_the_same_way() -> None:
    text = (ROOT / "compose.yaml").read_text("utf-8")
    services = pytest.importorskip("yaml").safe_load(text)["services"]
    service = services["seqplan"]
    entry = service["entrypoint"]
    options = build_parser({}).parse_args([*entry, *service["command"]][1:])
    assert options.store == "postgresql+psycopg://seqplan@postgres/seqplan"
    assert str(options.files).startswith(texts("VOLUME")[0] + "/")
    assert options.host == "0.0.0.0"
    # No command line shows the password, and no URL has to quote it.
    assert 'PGPASSWORD: "${POSTGRES_PASSWORD' in text
    assert "POSTGRES_PASSWORD" not in str([*entry, *service["command"]])
    assert all(published.startswith("127.0.0.1:") for published in service["ports"])
    (check,) = texts("HEALTHCHECK")
    assert service["healthcheck"]["test"] == ["CMD", *json.loads(check.partition("CMD ")[2])]
    assert set(service["depends_on"]) < set(services)
    # The password is the user's to set: nothing starts with one that everybody knows.
    assert set(re.findall(r"\$\{POSTGRES_PASSWORD[^}]*", text)) == {
        "${POSTGRES_PASSWORD:?set a password for the store"
    }
    hint = re.search(r"docker compose run --rm seqplan (.*)", text)
    assert build_parser({}).parse_args([*entry[1:], *hint[1].split()]).add_token == "trainer"
    # Compose rejects the file if a required variable is unset, whichever service is started.
    (alone,) = re.findall(r"#\s+(.*docker compose --profile sidecar .*)", text)
    required = set(re.findall(r"\$\{(\w+):\?", text))
    settings, (_, arguments) = alone.split()[: len(required)], alone.split("docker compose ")
    assert {setting.partition("=")[0] for setting in settings} == required
    assert arguments.split() == ["--profile", "sidecar", "up", "sidecar"]
    assert alone in (ROOT / "docs" / "service.md").read_text("utf-8")
    assert "depends_on" not in services["sidecar"]
    job = build_parser({}).parse_args(services["sidecar"]["command"][1:]).job
    assert f"./examples:{job.parent}" in services["sidecar"]["volumes"]
    assert (ROOT / "examples" / job.name).is_file()


def test_links_of_the_example_job_end_in_what_compose_mounts(tmp_path: Path) -> None:
    text = (ROOT / "compose.yaml").read_text("utf-8")
    sidecar = pytest.importorskip("yaml").safe_load(text)["services"]["sidecar"]
    for volume in sidecar["volumes"]:
        folder, inside, *_ = volume.split(":")
        shutil.copytree(ROOT / folder, tmp_path / inside.lstrip("/"), symlinks=True)
    job = read_job_file(tmp_path / "job" / "job.toml")
    assert len(read_lengths([job.lengths]).values)


def test_the_example_job_can_be_planned() -> None:
    job = read_job_file(ROOT / "examples" / "job.toml")
    assert find_profile(job.profile).name == job.profile
    assert read_lengths([job.lengths]).values.clip(max=job.max_len).sum() > job.tokens
