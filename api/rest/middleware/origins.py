"""Before a request of a service without tokens is handled: does it come from a foreign page?

Whoever reaches such a service may do everything, and so might a page of another site in a browser
of this machine: by a request to 127.0.0.1, or to a name of its site that resolves to
127.0.0.1. The browser sends the page (Origin, Sec-Fetch-Site) and the name (Host).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from seqplan.api.rest.payloads.problems import Problem

_READING = ("GET", "HEAD", "OPTIONS")
_OWN = ("same-origin", "none")
"""Sec-Fetch-Site of the service's page, and of a typed address."""


def is_loopback(host: str) -> bool:
    """Whether a host, an address or a name, is this machine by any name server."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def check_host(name: str | None, hosts: frozenset[str]) -> None:
    """Raise 403 for a Host that is neither loopback nor in ``hosts`` (lower case)."""
    if name is not None and not _is_known(name, hosts):  # every browser sends it
        raise Problem(
            403,
            "foreign-host",
            f"Host {name!r}: without tokens this service answers by localhost and loopback "
            "addresses only; make a token, or name the host with --allow-host",
        )


def check_origin(method: str, headers: Headers, hosts: Collection[str]) -> None:
    """Raise 403 for a write by a page of another origin; ``hosts`` as above."""
    if method in _READING:
        return
    site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
    foreign = origin is not None and not _same(origin, headers.get("host", ""), hosts)
    if site not in _OWN or foreign:
        who = f"a page of {origin}" if origin is not None else f"a {site} page"
        raise Problem(
            403,
            "foreign-origin",
            f"{who} may not write here; send it from outside a browser, or make a token",
        )


def _same(origin: str, host: str, hosts: Collection[str]) -> bool:
    """Return whether an origin is the request's host or one of the further hosts."""
    try:
        parts = urlsplit(origin)
        name = parts.hostname
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or name is None:
        return False  # "null" or no origin
    return parts.netloc.lower() == host.lower() or name.lower() in hosts


@lru_cache(maxsize=64)  # every rank sends the same, in every step
def _is_known(host: str, hosts: frozenset[str]) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name is not None and (is_loopback(name) or name in hosts)
