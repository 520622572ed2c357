"""The Dockerfile, as far as it can be held without a container engine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "Dockerfile").read_text().splitlines()


def test_what_it_installs_is_all_but_torch() -> None:
    (command,) = [line[4:] for line in LINES if line.startswith("RUN python -c ")]
    match = re.fullmatch(r'RUN python -c "(.*)" > requirements\.txt', f"RUN {command}")
    assert match is not None
    listed = subprocess.run(
        [sys.executable, "-c", match[1]], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = {re.split(r"[^A-Za-z0-9_-]", each)[0] for each in listed}
    assert "torch" not in names
    assert {"numpy", "scipy", "ortools", "pulp", "fastapi", "uvicorn", "sqlalchemy"} <= names


def test_it_runs_the_service_as_nobody_special_and_watches_it() -> None:
    final = LINES[max(at for at, line in enumerate(LINES) if line.startswith("FROM ")) :]
    assert [line for line in final if line.startswith("USER ")] == ["USER seqplan"]
    assert any(line.startswith("HEALTHCHECK") for line in final)
    assert any("/healthz" in line for line in final)
    assert final[-1].startswith('CMD ["seqplan", "serve", ')
