"""Options of commands that read from a running service, and the client that they make."""

from __future__ import annotations

import argparse
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from seqplan.api.cli.framework.options import add_option

if TYPE_CHECKING:
    from seqplan.api.client.client import Client
    from seqplan.costs.profile import Profile
    from seqplan.plans.plan import Plan

RETRY_S = 1.0
"""A person waits for the command: a service that is away for longer is an error."""


def add_server(source: Any) -> None:
    """Add ``--server`` to a group of sources."""
    add_option(source, "--server URL", help="a running service, http://HOST:PORT")


def add_credentials(parser: argparse.ArgumentParser) -> None:
    """Add ``--token`` and ``--ca``."""
    add_option(
        parser,
        "--token TOKEN",
        help="for a service that requires one; better in SEQPLAN_TOKEN, which ps cannot show",
    )
    add_option(parser, "--ca FILE", help="trusted certificates (PEM) of an https server")


def fetch_plan(client: Client, job: str, step: int) -> Plan | None:
    """Fetch the plan of a step; None if it has expired, which may happen at any time."""
    from seqplan.api.client.exchange import ServiceError

    try:
        return client.get_plan(job, step)
    except ServiceError as error:
        if error.status != HTTPStatus.GONE:
            raise
        return None


def fetch_profile(client: Client, proposal: str, origin: str) -> Profile:
    """Fetch the profile of a job's proposal; ``origin``: its name in messages."""
    from seqplan.costs.profile import Profile

    document = client.get_proposal(proposal).document
    assert document is not None  # a job is planned by it
    return Profile.from_document(document["profile"], f"{origin}: profile")


def connect(args: argparse.Namespace) -> Client:
    """Make the client of ``--server``. ``ValueError`` for options that cannot be used."""
    from seqplan.api.client.client import Client

    try:
        return Client(args.server, args.token, ca=args.ca, retry_s=RETRY_S)
    except ValueError as error:  # of a parameter, which here is the option of the same name
        raise ValueError(f"--{error}") from None
