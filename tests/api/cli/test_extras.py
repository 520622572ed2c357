"""A command without an optional package names the extra in one line."""

import importlib.util
from pathlib import Path

import pytest
from command_line import call, complaint, nothing_left, succeeded
from planned_files import PlannedFiles

TORCH = "needs the torch package: pip install 'seqplan[runtime]'"
RAY = "ray: needs the ray package. pip install 'seqplan[ray]'"
LOG = "log --plans {dense.plans} --to jsonl:{output} --to"
COMMANDS = [
    (
        "torch",
        "check training --plans {dense.plans} --ranks 4 --steps 1",
        f"check training {TORCH}",
    ),
    ("torch", "profile measure --model small -o {output}", f"measuring a profile {TORCH}"),
    ("ray", "plan --proposal {dense.proposal} {dense.lengths} --workers ray:2", RAY),
    ("ray", "serve --store {output} --workers ray:2", RAY),
    *(
        (logger, f"{LOG} {logger}:x", f"{logger}:x: {logger} is not installed. {install}")
        for logger in ("tensorboard", "wandb", "mlflow")
        for install in [f"pip install 'seqplan[{logger}]'"]
    ),
]


def hide(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name == package else find(name)
    )


@pytest.mark.parametrize(("package", "command", "message"), COMMANDS)
def test_the_extra_is_named(
    package: str,
    command: str,
    message: str,
    dense: PlannedFiles,
    output: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hide(package, monkeypatch)
    words = [word.format(dense=dense, output=output) for word in command.split()]
    assert complaint(call(*words)) == message
    nothing_left(output)


def test_a_profile_is_estimated_without_torch(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide("torch", monkeypatch)
    options = ("--model", "llama3-8b", "--hardware", "a100-80gb", "--gpus-per-node", 8)
    succeeded(call("profile", "derive", *options, "-o", output))
    assert output.exists()
