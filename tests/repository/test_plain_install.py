"""A plain install, used inside the checkout whose ``seqplan`` folder hides it."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT_FROM = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "examples")
_TWO_STEPS = ("--tokens", "200000", "--steps", "2", "--workers", "2", "-o", "again.jsonl")
LOCATE = "import seqplan.plans.plan as module; print(module.__file__)"


def copy_checkout(folder: Path) -> Path:
    """Copy the clone's files that an install or its first commands read."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    packages = pyproject["tool"]["setuptools"]["package-dir"].values()
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd", "build", "*.egg-info")
    for name in (*BUILT_FROM, *packages):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


class PlainInstall:
    """A checkout and an environment with the package installed from it, not editable."""

    def __init__(self, folder: Path) -> None:
        (folder / "checkout").mkdir()
        self.checkout = copy_checkout(folder / "checkout")
        self.environment = folder / "environment"
        # The dependencies come by path: an editable install of this environment does not apply.
        self.variables = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
            "PYTHONPATH": sysconfig.get_path("purelib"),
        }
        self.run(sys.executable, "-m", "venv", "--without-pip", str(self.environment))
        self.python = str(self.environment / "bin" / "python")
        self.seqplan = str(self.environment / "bin" / "seqplan")

    def install(self) -> None:
        pip = (sys.executable, "-m", "pip", "--python", self.python, "install", "--no-index")
        self.run(*pip, "--no-compile", "--no-deps", "--no-build-isolation", ".")

    def run(self, *command: str, folder: Path | None = None) -> str:
        """Run a command in the checkout, or another folder, and return its output."""
        completed = subprocess.run(
            command, cwd=folder or self.checkout, env=self.variables, capture_output=True, text=True
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr
        return completed.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> PlainInstall:
    if os.name != "posix" or find_spec("setuptools") is None or find_spec("pip") is None:
        pytest.skip("the package cannot be built here")
    plain = PlainInstall(tmp_path_factory.mktemp("plain"))
    plain.install()
    return plain


def test_installed_package_is_used_inside_checkout(installed: PlainInstall) -> None:
    """By ``-c``, ``-m``, a script of the root and processes of a command."""
    (installed.checkout / "locate.py").write_text(LOCATE)
    site = installed.environment.resolve()
    for arguments in (("-c", LOCATE), ("locate.py",), ("-c", f"import seqplan.plans; {LOCATE}")):
        assert Path(installed.run(installed.python, *arguments)).is_relative_to(site)
    names = "import seqplan; print(seqplan.Planner.__module__, seqplan.__file__)"
    module, file = installed.run(installed.python, "-c", names).split()
    assert module == "seqplan.planner.workers.in_process"
    assert Path(file).is_relative_to(site)
    assert installed.run(installed.python, "-m", "seqplan", "--version").startswith("seqplan ")


def test_first_commands_run(installed: PlainInstall, tmp_path: Path) -> None:
    """The demonstration, in an empty folder, starts ranks, and planning in the checkout workers."""
    shown = installed.run(
        installed.seqplan, "demo", "-o", str(installed.checkout / "out"), folder=tmp_path
    )
    assert "7. Executed" in shown or find_spec("torch") is None
    plan = ("plan", "--proposal", "out/proposal.json", "examples/data/code.npy")
    installed.run(installed.seqplan, *plan, *_TWO_STEPS)
    first = (installed.checkout / "out" / "plans.jsonl").read_text().splitlines()
    assert (installed.checkout / "again.jsonl").read_text().splitlines() == first[:2]


def test_processes_of_both_starts_use_one_package(installed: PlainInstall) -> None:
    code = (
        "import multiprocessing as m, seqplan.plans.plan as p\n"
        "from where import where\n"
        "if __name__ == '__main__':\n"
        "    for start in ('spawn', 'forkserver'):\n"
        "        with m.get_context(start).Pool(1) as pool:\n"
        "            assert pool.apply(where) == p.__file__\n"
        "    print(p.__file__)\n"
    )
    (installed.checkout / "where.py").write_text(
        "def where():\n    import seqplan.plans.plan as module\n    return module.__file__\n"
    )
    (installed.checkout / "start.py").write_text(code)
    used = installed.run(installed.python, "start.py")
    assert Path(used).is_relative_to(installed.environment.resolve())


def test_checkout_without_an_install_is_whole(tmp_path: Path) -> None:
    """Its folders are used, and Python does greedy placement when nothing was compiled."""
    plain = PlainInstall(tmp_path)
    assert Path(plain.run(plain.python, "-c", LOCATE)).is_relative_to(plain.checkout.resolve())
    balance = "seqplan.balance([5, 6, 7], 2, capacity=20, cost=seqplan.Cost(0, 1, 1))"
    code = f"import seqplan; print(len({balance}.micro_batches))"
    assert plain.run(plain.python, "-c", code) == "2\n"
