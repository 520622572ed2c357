"""Packages of a release: built without an index, installed, and equal to the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from seqplan.plans.version import VERSION

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PLAN = ROOT / "tests" / "repository" / "first_plan.py"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
PYTHONS = ("3.12", "3.13", "3.14")


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    completed = subprocess.run(
        command, cwd=cwd, env=CLEAN | variables, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def libraries() -> str:
    """The folder of .venv with the dependencies; in the layered environment it is behind."""
    spec = find_spec("numpy")
    assert spec.origin is not None
    return str(Path(spec.origin).parents[1])


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the source distribution and, from it alone, both wheels; with setuptools alone."""
    folder = tmp_path_factory.mktemp("packages")
    tools = folder / "tools"
    tools.mkdir()
    site = Path(libraries())
    for path in (*site.glob("setuptools*"), site / "_distutils_hack"):  # with its commands' names
        (tools / path.name).symlink_to(path)
    checkout = folder / "checkout"
    tracked = run("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in tracked:
        if (ROOT / name).is_file() and not (ROOT / name).is_symlink():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
    dist = folder / "dist"

    def build(kind: str, source: Path, **variables: str) -> Path:
        code = f"import setuptools.build_meta as m; print(m.build_{kind}({str(dist)!r}))"
        printed = run(
            sys.executable, "-S", "-c", code, cwd=source, PYTHONPATH=str(tools), **variables
        )
        return dist / printed.splitlines()[-1]

    dist.mkdir()
    archive = build("sdist", checkout)
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    source = folder / archive.name.removesuffix(".tar.gz")
    wheel = build("wheel", source)
    shutil.rmtree(source / "build")
    return {"source": archive, "wheel": wheel, "pure": build("wheel", source, SEQPLAN_PURE="1")}


def test_names_state_what_they_run_on(packages: dict[str, Path]) -> None:
    assert packages["source"].name == f"seqplan-{VERSION}.tar.gz"
    assert packages["pure"].name == f"seqplan-{VERSION}-py3-none-any.whl"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert packages["wheel"].name == f"seqplan-{VERSION}-cp311-abi3-{platform}.whl"


def test_contents(packages: dict[str, Path]) -> None:
    with zipfile.ZipFile(packages["wheel"]) as file:
        names = set(file.namelist())
    licenses = f"seqplan-{VERSION}.dist-info/licenses"
    for name in ("LICENSE", "api/dashboard/vendor/NOTICE", "api/dashboard/vendor/uPlot.LICENSE"):
        assert f"{licenses}/{name}" in names
    code = {name for name in names if name.endswith(".py")}
    tops = ("api", "costs", "integrations", "planner", "plans", "profiler", "runtime")
    of_checkout = {
        f"seqplan/{path.relative_to(ROOT)}" for top in tops for path in (ROOT / top).rglob("*.py")
    }
    of_checkout |= {f"seqplan/{path.name}" for path in (ROOT / "seqplan").glob("*.py")}
    assert code == of_checkout
    with zipfile.ZipFile(packages["pure"]) as file:
        extension = "seqplan/planner/placement/fill_kernel.abi3.so"
        assert names - set(file.namelist()) == {extension}


def test_every_package_makes_the_same_plan(packages: dict[str, Path], tmp_path: Path) -> None:
    state = {"source": "compiled", "wheel": "compiled", "pure": "Python (kernel not built)"}
    variables = {"PYTHONPATH": libraries()}
    bare = tmp_path / "checkout"
    run(sys.executable, "-m", "venv", "--without-pip", bare)
    expected = run(bare / "bin" / "python", PLAN, PYTHONPATH=f"{ROOT}:{libraries()}").split("\n")[0]
    assert expected.startswith("sha256:")
    for name, package in packages.items():
        environment = tmp_path / name
        run(sys.executable, "-m", "venv", "--without-pip", environment)
        python = environment / "bin" / "python"
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-index")
        run(*pip, "--no-deps", "--no-build-isolation", package, cwd=tmp_path, **variables)
        shown = run(python, PLAN, cwd=tmp_path, **variables)
        assert shown == f"{expected}\n{state[name]}\n", name
        located = "import seqplan.plans.plan as module; print(module.__file__)"
        assert Path(run(python, "-c", located, cwd=tmp_path, **variables).strip()).is_relative_to(
            environment
        )


@pytest.mark.parametrize("version", PYTHONS)
def test_the_extension_loads_in_later_pythons(
    packages: dict[str, Path], tmp_path: Path, version: str
) -> None:
    """If one is installed; without numpy, which this environment has for one Python only."""
    interpreters = [shutil.which(f"python{version}"), *_pyenv(version)]
    pythons = [name for name in interpreters if name and _runs(name)]
    if not pythons:
        pytest.skip(f"no Python {version}")
    with zipfile.ZipFile(packages["wheel"]) as file:
        path = file.extract("seqplan/planner/placement/fill_kernel.abi3.so", tmp_path)
    code = "import fill_kernel, sys; print(sys.version_info[:2], fill_kernel.SOURCE)"
    shown = run(pythons[0], "-c", code, PYTHONPATH=str(Path(path).parent))
    from seqplan.planner.placement import fill

    major, minor = version.split(".")
    source = fill.source_digest(fill.SOURCES)
    assert shown == f"({major}, {minor}) {source}\n"


def _pyenv(version: str) -> list[str]:
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return [str(path) for path in folder.glob(f"{version}*/bin/python{version}")]


def _runs(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, env=CLEAN).returncode == 0


def read_schema() -> Any:
    """GitHub's schema of workflows, which a package brings; its program is not needed."""
    try:
        package = distribution("check-jsonschema")
    except PackageNotFoundError:
        pytest.skip("check-jsonschema is not installed")
    path = "check_jsonschema/builtin_schemas/vendor/github-workflows.json"
    return json.loads(Path(str(package.locate_file(path))).read_text("utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=[path.name for path in WORKFLOWS])
def test_workflows_fit_their_schema(path: Path) -> None:
    schema = read_schema()
    loaded = yaml.safe_load(path.read_text("utf-8"))
    workflow = {"on" if key is True else key: value for key, value in loaded.items()}  # YAML 1.1
    jsonschema.validate(workflow, schema)
    needed = {need for job in workflow["jobs"].values() for need in _needs(job)}
    assert needed <= set(workflow["jobs"])
    for job in workflow["jobs"].values():
        called = job.get("uses", "")
        assert not called.startswith("./") or (ROOT / called).is_file(), called
    workflow["jobs"] = {"test": {"steps": []}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(workflow, schema)


def _needs(job: Any) -> list[str]:
    needs = job.get("needs", [])
    return [needs] if isinstance(needs, str) else list(needs)


def test_scripts_of_workflows_pass_shellcheck(tmp_path: Path) -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    if not shellcheck.exists():
        pytest.skip("shellcheck is not installed")
    scripts = [
        step["run"]
        for path in WORKFLOWS
        for job in yaml.safe_load(path.read_text("utf-8"))["jobs"].values()
        for step in job.get("steps", [])
        if "run" in step
    ]
    assert len(scripts) >= 10
    for number, script in enumerate(scripts):
        # An expression of GitHub is replaced before a shell reads it.
        path = tmp_path / f"{number}.sh"
        script = re.sub(r"\$\{\{.*?\}\}", "EXPRESSION", script)
        path.write_text(f"#!/bin/bash\nset -e\n{script}")
        run(shellcheck, "--exclude=SC2035,SC2086", path)


def test_cibuildwheel_builds_one_wheel_a_platform() -> None:
    program = Path(sys.executable).parent / "cibuildwheel"
    if not program.exists():
        pytest.skip("cibuildwheel is not installed")
    for platform, arch, wanted in (
        ("linux", "x86_64", "cp311-manylinux_x86_64"),
        ("linux", "aarch64", "cp311-manylinux_aarch64"),
        ("macos", "arm64", "cp311-macosx_arm64"),
    ):
        options = ("--print-build-identifiers", "--platform", platform, "--archs", arch)
        assert run(program, *options).split() == [wanted]


def test_the_bill_of_materials_has_every_dependency(tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "cyclonedx-py"
    if not program.exists():
        pytest.skip("cyclonedx-bom is not installed")
    output = tmp_path / "sbom.json"
    run(program, "environment", sys.executable, "-o", output)
    components = {part["name"]: part for part in json.loads(output.read_text())["components"]}
    assert components["seqplan"]["version"] == VERSION
    assert components["seqplan"]["licenses"][0]["expression"] == "Apache-2.0 AND MIT"
    assert {"numpy", "scipy", "ortools", "fastapi", "httpx2", "sqlalchemy"} <= {
        name.lower() for name in components
    }
