"""A sidecar's job file (TOML): one job, its store and its address."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from seqplan.api.store.names import check_job_id
from seqplan.costs.model_files.description_file import check_fields
from seqplan.planner.workers.executor import ONE_WORKER, Workers
from seqplan.planner.workload import MOST_GPUS, MOST_LOOK_AHEAD
from seqplan.plans.format.fields import MAX_INTEGER, read_text


@dataclass(frozen=True, kw_only=True)
class JobFile:
    """The job of a sidecar. Relative paths are taken from the file's folder.

    ``profile``: name or file; ``lengths``: any source of lengths; ``gpus``: ranks of the job;
    ``max_len``: longest sequence (tokens), longer ones are truncated; ``tokens``: of a step (0:
    the default per GPU); ``look_ahead``: steps planned beyond the slowest rank; ``store``: a path
    or URL; ``files``: folder of uploaded arrays (default: next to a SQLite store; several sidecars
    of a PostgreSQL store share it); ``workers``: planners, a number or ``"ray:4"``;
    ``allow_host``: see ``serve --allow-host``; ``execution``,
    ``micro_step_multiple`` and ``trainer``: see ``propose``; ``keep_steps``, ``abandon_hours``,
    ``job_days`` and ``grace_days``: see ``serve``; ``token_file``: the file of the token that every
    request then needs, made if absent; ``refit``: correct costs by measured times; ``slowdown``:
    how many times as long each rank takes as the profile has it; ``robust``: see ``plan``.
    """

    profile: str
    lengths: str
    gpus: int
    max_len: int
    steps: int
    job: str = "job"
    tokens: int = 0
    seed: int = 0
    look_ahead: int = 8
    store: str = "seqplan.db"
    files: str = ""
    host: str = "127.0.0.1"
    port: int = 8400
    allow_host: str = ""
    workers: Workers = ONE_WORKER
    execution: str = ""
    micro_step_multiple: int = 1
    keep_steps: int = 5000
    abandon_hours: int = 24
    job_days: int = 30
    grace_days: int = 7
    token_file: str = ""
    trainer: str = ""
    refit: bool = False
    slowdown: tuple[float | None, ...] = ()
    robust: float = 0.0


LOST = "lost"
"""A lost rank, among the factors of ``slowdown``."""

_LEAST = {"tokens": 0, "seed": 0, "port": 0, "job_days": 0}
_MOST = {"gpus": MOST_GPUS, "look_ahead": MOST_LOOK_AHEAD, "seed": MAX_INTEGER}
_KINDS: dict[Any, tuple[type, str]] = {
    "str": (str, "a string"),
    "int": (int, "an integer"),
    "bool": (bool, "true or false"),
    "float": (float, "a number with a point, as 0.1"),
    "tuple[float | None, ...]": (list, 'a factor or "lost" for each rank, as [1.0, 1.3]'),
}


def read_job_file(path: Path) -> JobFile:
    """Read a job file; ``ValueError`` names the field that is missing, unknown or out of range."""
    try:
        raw: dict[str, Any] = tomllib.loads(read_text(path, ValueError))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not TOML: {error}. Repair the file") from None
    known = {field.name: field for field in fields(JobFile)}
    check_fields(path, sorted(raw), known)
    with name_file(path):
        for name, field in known.items():
            if name not in raw:
                if field.default is MISSING:
                    raise ValueError(f"lacks {name}. State it")
            elif name != "workers":
                _check_value(name, raw[name], *_KINDS[field.type])
        check_job_id(raw.get("job", "job"))
        workers = Workers.parse(raw.get("workers", 1))
    slowdown = tuple(None if each == LOST else float(each) for each in raw.get("slowdown", ()))
    values = {**raw, **_resolve_paths(raw, path.parent), "workers": workers, "slowdown": slowdown}
    return JobFile(**values)


@contextmanager
def name_file(path: Path) -> Iterator[None]:
    """Begin the message of a ``ValueError`` with the job file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _check_value(name: str, value: Any, kind: type, wanted: str) -> None:
    """Check a field's kind and range; ``ValueError`` names it."""
    factors = value if isinstance(value, list) else ()
    numbers = [each for each in factors if each != LOST]
    if type(value) is not kind or any(type(each) not in (int, float) for each in numbers):
        raise ValueError(f"{name}: must be {wanted}: {value!r}")
    if value == "":
        raise ValueError(f"{name} is empty. State it, or leave it out")
    if type(value) is not int:
        return
    if value < (least := _LEAST.get(name, 1)):
        raise ValueError(f"{name}: must be {least} or more: {value}")
    if name in _MOST and value > (most := _MOST[name]):
        raise ValueError(f"{name} must be {most} or fewer, not {value}")


def _resolve_paths(raw: dict[str, Any], folder: Path) -> dict[str, str]:
    """The paths of the file as seen from here; names of profiles and URLs stay."""
    places = {"lengths": str(folder / raw["lengths"])}
    store = raw.get("store", "seqplan.db")
    places["store"] = store if "://" in store else str(folder / store)
    for name in ("files", "token_file"):
        if raw.get(name):
            places[name] = str(folder / raw[name])
    if (folder / raw["profile"]).is_file():
        places["profile"] = str(folder / raw["profile"])
    return places
