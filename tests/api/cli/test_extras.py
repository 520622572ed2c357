"""A command without an optional package names the extra in one line."""

import importlib.util
from pathlib import Path

import pytest
from command_line import call, complaint
from planned_files import PlannedFiles


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name == "torch" else find(name)
    )


@pytest.mark.usefixtures("no_torch")
def test_training_and_measuring_require_torch(dense: PlannedFiles, tmp_path: Path) -> None:
    install = "needs the torch package: pip install 'seqplan[runtime]'"
    check = call("check", "training", "--plans", dense.plans, "--ranks", 4, "--steps", 1)
    assert complaint(check) == f"check training {install}"
    output = tmp_path / "profile.json"
    profile = call("profile", "measure", "--model", "small", "--lengths", "64..128", "-o", output)
    assert complaint(profile) == f"measuring a profile {install}"
    assert not output.exists()


@pytest.mark.usefixtures("no_torch")
def test_a_profile_is_estimated_without_torch(tmp_path: Path) -> None:
    output = tmp_path / "profile.json"
    options = ("--model", "llama3-8b", "--hardware", "a100-80gb", "--gpus-per-node", 8)
    outcome = call("profile", "derive", *options, "-o", output)
    assert outcome.code == 0, outcome.err
    assert output.exists()
