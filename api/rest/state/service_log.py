"""The service's log: lines with time, level, job and request, as text or JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Any

REQUEST: ContextVar[str | None] = ContextVar("request", default=None)
"""Id of the request that is being handled, also in the threads that handle it."""

_OF_JOB = "job %s: "
"""Messages about a job begin with this, and its id is their first argument."""


def write_log(settings: tuple[str, bool]) -> None:
    """Log to stderr from now on, in this process: a level and above, as JSON or not."""
    level, as_json = settings
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if as_json else _Text())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("seqplan").setLevel(level.upper())


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _origins(record: logging.LogRecord) -> dict[str, Any]:
    """Return a line's job and request, if it has any."""
    origins: dict[str, Any] = {}
    if isinstance(record.args, tuple) and record.args and str(record.msg).startswith(_OF_JOB):
        origins["job"] = record.args[0]
    if (request := getattr(record, "request", None) or REQUEST.get()) is not None:
        origins["request"] = request
    return origins


class _Text(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        request = _origins(record).get("request")
        of = "" if request is None else f" [{request}]"
        return f"{_time(record)} {record.levelname} {record.name}{of}: {record.message}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        line |= _origins(record) | {"message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)
