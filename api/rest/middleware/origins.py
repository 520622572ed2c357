"""Before a request of a service without tokens is handled: does it come from a foreign page?

Whoever reaches such a service may do everything, and so might a page of another site in a browser
of this machine: by asking 127.0.0.1 itself, or by a name of its own that it has resolved to
127.0.0.1. The browser says which page asks (Origin, Sec-Fetch-Site) and by what name (Host).
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
"""What a browser says of a request of the service's own page, and of an address that was typed."""


def is_loopback(host: str) -> bool:
    """Whether a host, an address or a name, is this machine whatever a name server says."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def check_host(name: str | None, hosts: frozenset[str]) -> None:
    """Raise 403 for a Host that is neither of loopback nor one of ``hosts`` (names, lower case)."""
    if name is not None and not _is_known(name, hosts):  # every browser sends it
        raise Problem(
            403,
            "foreign-host",
            f"Host {name!r}: without tokens this service answers by localhost and loopback "
            "addresses only; make a token, or name the host with --allow-host",
        )


def check_origin(method: str, headers: Headers, hosts: Collection[str]) -> None:
    """Raise 403 for a write that a page of another origin asks for; ``hosts`` as above."""
    if method in _READING:
        return
    site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
    foreign = origin is not None and not _same(origin, headers.get("host", ""), hosts)
    if site not in _OWN or foreign:
        who = f"a page of {origin}" if origin is not None else f"a {site} page"
        raise Problem(
            403,
            "foreign-origin",
            f"{who} may not write here; ask from outside a browser, or make a token",
        )


def _same(origin: str, host: str, hosts: Collection[str]) -> bool:
    """Whether an origin is what was asked, or one of the further hosts."""
    try:
        parts = urlsplit(origin)
        name = parts.hostname
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or name is None:
        return False  # "null" and what is none
    return parts.netloc.lower() == host.lower() or name.lower() in hosts


@lru_cache(maxsize=64)  # every rank sends the same, in every step
def _is_known(host: str, hosts: frozenset[str]) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name is not None and (is_loopback(name) or name in hosts)
