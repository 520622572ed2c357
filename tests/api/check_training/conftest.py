"""Plans for two ranks, made by the command line, and where commands have their files."""

import multiprocessing.util
import tempfile
from pathlib import Path

import pytest
from small_check import STEPS, planned


@pytest.fixture(scope="session")
def plans(tmp_path_factory: pytest.TempPathFactory, lengths: Path) -> Path:
    """Short steps on two ranks."""
    return planned(
        tmp_path_factory.mktemp("small"), lengths, tokens=2000, max_len=1000, steps=STEPS
    )


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands of a test have their temporary files."""
    multiprocessing.util.get_temp_dir()  # kept for the whole process: it must not be in the folder
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder
