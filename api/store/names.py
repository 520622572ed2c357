"""What jobs and tokens may be called, wherever they are named."""

from __future__ import annotations

import re

JOB_ID = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$"
"""A job's id is a segment of a path; ``.`` and ``..`` never reach a server, and hidden files of
their name are nobody's wish."""

_LONGEST = 128


def check_job_id(name: str) -> str:
    """Return the name of a job; ``ValueError`` for one that no path can hold."""
    if not re.fullmatch(JOB_ID[1:-1], name):
        raise ValueError(
            f"must be 1 to {_LONGEST} of A-Z, a-z, 0-9, '_', '-' and '.', which is not the first, "
            f"not {name!r}"
        )
    return name


def check_token_name(name: str) -> str:
    """Return the name of a token; ``ValueError`` for one that no line of a list can hold."""
    if not 0 < len(name) <= _LONGEST or not name.isprintable() or name != name.strip():
        raise ValueError(f"a token's name must be 1 to {_LONGEST} printable characters: {name!r}")
    return name
