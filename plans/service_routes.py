"""Routes of the planning service, and checks of its address and time limits, for all sides."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, quote, urlsplit

from seqplan.plans.version import VERSION

HEALTH = "/healthz"
READINESS = "/readyz"
METRICS = "/metrics"
PROFILES = "/v1/profiles"
PROFILE = f"{PROFILES}/{{profile}}"
LENGTHS = "/v1/lengths"
LENGTHS_SET = f"{LENGTHS}/{{lengths}}"
PROPOSALS = "/v1/proposals"
PROPOSAL_DOCUMENTS = f"{PROPOSALS}/documents"
PROPOSAL = f"{PROPOSALS}/{{proposal}}"
PROPOSAL_DOCUMENT = f"{PROPOSAL}/document"
PLAN_BATCH = f"{PROPOSAL}/plan"
PROGRESS = "/v1/progress"
JOBS = "/v1/jobs"
JOB = f"{JOBS}/{{job}}"
STOP = f"{JOB}/stop"
RESTART = f"{JOB}/restart"
JOB_PROPOSAL = f"{JOB}/proposal"
REVISIONS = f"{JOB}/revisions"
SAMPLER_STATE = f"{JOB}/state"
BATCHES = f"{JOB}/batches"
PLAN = f"{JOB}/plans/{{step}}"
VIEW = f"{PLAN}/ranks/{{rank}}"
EXPLAIN = f"{PLAN}/explain"
SIMULATE = f"{PLAN}/simulate"
TIMELINE = f"{PLAN}/timeline"
ACKS = f"{JOB}/acks"
ACKS_MANY = f"{ACKS}/many"
MEASUREMENTS = f"{JOB}/measurements"
JOB_PROGRESS = f"{JOB}/progress"
STEPS = f"{JOB}/steps"
CALIBRATION = f"{JOB}/calibration"

RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that pass: of proxies, of a service that starts, of too many requests."""

MOST_S = 1e9
"""Seconds of a time limit at most, 31 years: sockets and locks take no more than 292."""

VERSION_HEADER = "Seqplan-Version"
"""Response header with the service's version."""


def fill_route(route: str, **names: str | int) -> str:
    """Return the path of a route, with ``names`` percent-encoded."""
    return route.format_map({name: quote(str(value), safe="") for name, value in names.items()})


def route_pattern(route: str) -> str:
    """Return a regular expression without groups that a route's paths match."""
    return re.sub(r"\{\w+\}", "[^/]+", route)


def describe_mismatch(version: str | None) -> str | None:
    """Return why a service of ``version`` cannot be used, with the fix; None if it can.

    Releases of one minor version fit together. None: the response has no version header.
    """
    if version is None:
        return "not a seqplan service, or one before 0.1. Check the URL"
    try:
        theirs, ours = (tuple(map(int, text.split(".")[:2])) for text in (version, VERSION))
    except ValueError:
        return f"service version {version!r} cannot be read. Check the URL"
    if theirs == ours:
        return None
    wanted = f"{theirs[0]}.{theirs[1]}"
    fix = f"Install this one here: pip install 'seqplan=={wanted}.*'"
    age = "newer" if theirs > ours else "older"
    return f"the service is seqplan {version}, {age} than {VERSION} here. {fix}"


def split_service_url(url: str, token: str | None) -> SplitResult:
    """Split the URL of a service. ``ValueError`` for one, or a token, that cannot be used."""
    if not isinstance(url, str):
        raise TypeError(f"server: {url!r:.60}. Give its address as text")
    if token is not None and not isinstance(token, str):
        raise TypeError("token: is no text. Give it as text")
    parts = urlsplit(url)
    valid = parts.scheme in ("http", "https") and parts.hostname and not parts.query
    try:
        parts.port  # noqa: B018 - raises if it is none
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"server must be http://HOST:PORT: {url!r}")
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ValueError("token: has characters that no header can hold. Copy it again")
    return parts


def check_seconds(name: str, value: object) -> None:
    """Check a time limit; ``TypeError`` if it is no number, ``ValueError`` for another one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}: {value!r:.60}. Give seconds as a number")
    if not 0 <= value <= MOST_S:
        raise ValueError(f"{name}: {value}. Give seconds from 0 to {MOST_S:g}")
