"""The profiles that ship with the package, and finding a profile by name or file."""

from __future__ import annotations

import difflib
import os
from functools import cache
from importlib import resources
from pathlib import Path

from seqplan.costs.profile import Profile
from seqplan.costs.profiled_scheme import ProfileError


@cache
def list_shipped() -> tuple[str, ...]:
    """Return the names of the profiles that ship, sorted."""
    folder = resources.files("seqplan.costs.shipped")
    return tuple(
        sorted(p.name.removesuffix(".json") for p in folder.iterdir() if p.name.endswith(".json"))
    )


@cache
def load_shipped(name: str) -> Profile:
    """Load a shipped profile; ``ProfileError`` with the nearest name when there is none."""
    if name not in list_shipped():
        near = difflib.get_close_matches(name, list_shipped(), n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ProfileError(
            f"profile {name!r} is neither a file nor a shipped profile{hint} "
            "(seqplan profile list has them)"
            ". Name one of them or a path"
        )
    text = resources.files("seqplan.costs.shipped").joinpath(f"{name}.json").read_text("utf-8")
    return Profile.from_json(text, f"profile {name}")


def find_profile(name_or_path: str | os.PathLike[str]) -> Profile:
    """Load a profile by name or file (a path separator, or an existing file)."""
    if not isinstance(name_or_path, str | os.PathLike):
        raise TypeError(f"profile: {name_or_path!r:.60}. Give its name or file")
    path, text = Path(name_or_path), os.fspath(name_or_path)
    if path.suffix == ".json" or "/" in text or path.is_file():
        return Profile.load(path)
    return load_shipped(text)
