"""A proposal and plans for each kind of profile, made once by the command line itself."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from command_line import call, succeeded
from made_files import MAX_LEN, Made

DATA = Path(__file__).parents[3] / "examples" / "data" / "code.npy"


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SEQPLAN_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 3,000 lengths of the data set that the repository carries."""
    path = tmp_path_factory.mktemp("lengths") / "lengths.npy"
    np.save(path, np.load(DATA)[:3000])
    return path


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory, lengths: Path) -> Made:
    """Pipelines that run independently."""
    return _make(tmp_path_factory.mktemp("dense"), "llama-7b-a800-80gb", 4, 8000, lengths)


@pytest.fixture(scope="session")
def lockstep(tmp_path_factory: pytest.TempPathFactory, lengths: Path) -> Made:
    """Rounds under ZeRO-3."""
    return _make(tmp_path_factory.mktemp("lockstep"), "gpt-7b-a100-40gb", 8, 30000, lengths)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A file in a folder of its own, which must stay empty."""
    folder = tmp_path / "output"
    folder.mkdir()
    return folder / "result.json"


def _make(folder: Path, profile: str, gpus: int, tokens: int, lengths: Path) -> Made:
    made = Made(profile, gpus, tokens, lengths, folder / "proposal.json", folder / "plans.jsonl")
    succeeded(
        call(
            *("propose", "--profile", profile, "--gpus", gpus, "--lengths", lengths),
            *("--max-len", MAX_LEN, "--tokens", tokens, "-o", made.proposal),
        )
    )
    succeeded(
        call(
            *("plan", "--proposal", made.proposal, "--lengths", lengths),
            *("--steps", made.steps, "-o", made.plans),
        )
    )
    return made
