"""``seqplan serve``: plans over HTTP."""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from seqplan.api.cli.framework import options

if TYPE_CHECKING:
    from seqplan.api.cli.framework.job_file import JobFile
    from seqplan.api.service.upkeep import Keeping

DESCRIPTION = """\
Serve plans over HTTP: trainers' ranks request their views, acknowledge steps, and never wait for
a plan that a killed service had published, as everything is in the store before it is sent.
Without tokens in the store it listens on loopback only, and rejects pages of other sites.
"""

EXAMPLES = """\
examples:
  seqplan serve --store seqplan.db --port 8400
  seqplan serve --store seqplan.db --add-token trainer --scope write
  seqplan serve --store seqplan.db --revoke-token trainer
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(options.add_option, parser)
    add("--store URL", required=True, help="a SQLite file, or postgresql+psycopg://…")
    add("--files DIR", help="uploaded arrays; default STORE.files")
    add("--host HOST", default="127.0.0.1", help="default 127.0.0.1")
    add(
        "--allow-host NAME",
        action="append",
        default=[],
        help="a Host, in addition to loopback, of a service without tokens; may be repeated",
    )
    add("--port PORT", default=8400, help="default 8400; 0: a free one")
    add(
        "--rate-limit REQUESTS",
        help="most requests a second of one token, or of one address without tokens; default none",
    )
    options.add_workers(parser, "planners of a job")
    add_keeping(parser)
    add("--add-token NAME", help="print a new bearer token, once, and end")
    add("--list-tokens", help="print the names and scopes of tokens, and end")
    add("--revoke-token NAME", help="have a token open nothing any more, and end")
    add("--scope", choices=("read", "write"), help="of that token; default read")
    add("--token-job ID", help="the only job that it opens")
    add("--token-days DAYS", help="after which it opens nothing")
    options.add_log(parser)


def add_keeping(parser: argparse.ArgumentParser) -> None:
    """Add the retention options."""
    add = partial(options.add_option, parser)
    add(
        "--keep-steps STEPS",
        default=5000,
        help="steps behind a job's slowest rank whose plans are kept; default 5000",
    )
    add(
        "--abandon-hours HOURS",
        default=24.0,
        help="hours without a request of any rank after which a job is planned no further; "
        "default 24",
    )
    add(
        "--job-days DAYS",
        type=options.natural,
        default=30,
        help="days without a request of any rank after which a finished, failed, stopped or "
        "abandoned job is removed; 0: never; default 30",
    )
    add(
        "--grace-days DAYS",
        default=7.0,
        help="days after which files that belong to no data set are removed; default 7",
    )


def keeping_of(settings: argparse.Namespace | JobFile) -> Keeping:
    """Return the retention that options, or the fields of a job file, state."""
    from seqplan.api.service.upkeep import Keeping
    from seqplan.api.store.tables.expiry import Retention

    return Keeping(
        retention=Retention(steps=settings.keep_steps),
        abandon_hours=settings.abandon_hours,
        job_days=settings.job_days,
        grace_days=settings.grace_days,
    )


def run(args: argparse.Namespace) -> int:
    """Run the command. ``ValueError`` for a store or an address that cannot be used."""
    # Imported here: no other command needs the web framework or the database.
    from seqplan.api.rest.middleware.tokens import Access
    from seqplan.api.rest.server import listen, serve
    from seqplan.api.rest.state.service_log import write_log
    from seqplan.api.service.service import Limits, Service
    from seqplan.api.store.store import Store

    options.check_port(args.port)
    args.workers.check_installed()
    of_token = (args.scope, args.token_job, args.token_days)
    if args.add_token is None and any(value is not None for value in of_token):
        raise ValueError(
            "--scope, --token-job, --token-days: are for a new token. Give --add-token NAME"
        )
    if args.list_tokens or args.add_token is not None or args.revoke_token is not None:
        return _tokens(args)
    write_log(args.log)
    limits = Limits(requests_a_second=args.rate_limit)
    with listen(args.host, args.port) as listener, closing(Store(args.store, args.files)) as store:
        service = Service(store, workers=args.workers, keeping=keeping_of(args), limits=limits)
        return serve(service, listener, args.host, Access(args.allow_host))


def _tokens(args: argparse.Namespace) -> int:
    """Add, revoke or list tokens, in that order; a service may be using the store meanwhile."""
    from seqplan.api.store.read_only import check_exists
    from seqplan.api.store.store import Store
    from seqplan.api.store.tables.tokens import add_token, list_tokens, revoke_token

    expires_at = None
    if args.token_days is not None:
        expires_at = int(time.time() + args.token_days * 86400)
    if args.add_token is None:
        check_exists(args.store)
    store = Store(args.store, args.files, in_use=True)
    with closing(store), store.writing() as connection:
        if args.add_token is not None:
            token = add_token(
                connection,
                args.add_token,
                args.scope or "read",
                job=args.token_job,
                expires_at=expires_at,
            )
        if args.revoke_token is not None:
            revoke_token(connection, args.revoke_token)
        listed = list_tokens(connection) if args.list_tokens else []
    if args.add_token is not None:
        print(token)
    for known in listed:
        expires = None if known.expires_at is None else time.gmtime(known.expires_at)
        limits = [] if known.job is None else [f"job {known.job}"]
        limits += [] if expires is None else [time.strftime("until %Y-%m-%dT%H:%M:%SZ", expires)]
        print("\t".join((known.scope, known.name, *limits)))
    return 0
