"""What the tests of the command line share: files that it made itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MAX_LEN = 4096


@dataclass(frozen=True)
class Made:
    """Files of one data set, profile and cluster; shared by tests, which must not change them."""

    profile: str
    gpus: int
    tokens: int
    lengths: Path
    proposal: Path
    plans: Path
    steps: int = 4
