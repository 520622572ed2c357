"""What jobs may be called, wherever they are named."""

from __future__ import annotations

import re

JOB_ID = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$"
"""A job's id is a segment of a path; ``.`` and ``..`` never reach a server, and hidden files of
their name are nobody's wish."""


def check_job_id(name: str) -> None:
    """Raise ``ValueError`` for the name of a job that no path can hold."""
    if not re.fullmatch(JOB_ID[1:-1], name):
        raise ValueError(
            "job: must be 1 to 128 of A-Z, a-z, 0-9, '_', '-' and '.', which is not the "
            f"first, not {name!r}"
        )
