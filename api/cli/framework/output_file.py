"""Output files: checked before the work that fills them, and profiles."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqplan.costs.profile import Profile
from seqplan.plans.format.atomic_file import write_text


def write_profile(path: Path, document: Mapping[str, Any]) -> Profile:
    """Write a profile's document, which is checked first, and return the profile."""
    profile = Profile.from_document(document, str(path))
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return profile


def check_output(path: Path | None, *inputs: str | Path | None) -> None:
    """``ValueError`` when a file of this name cannot be created or is an input; None is no file."""
    if path is None:
        return
    for source in inputs:
        if source is not None and os.path.realpath(source) == os.path.realpath(path):
            raise ValueError(f"{path}: is an input of this command; name another output")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; name a file in it")
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        return  # a device or a pipe is written to directly, whatever its folder allows
    folder = target.parent
    if not folder.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{path}: the folder {path.parent} is not writable")
