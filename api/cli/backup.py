"""``seqplan backup``: a copy of a service's store, made while the service runs."""

from __future__ import annotations

import argparse
from functools import partial

from seqplan.api.cli.framework.options import add_option
from seqplan.api.cli.framework.output import check_output

DESCRIPTION = """\
Copy a SQLite store and its folder of uploaded arrays to one file, as they are at one moment. A
service may be using the store meanwhile. For PostgreSQL: pg_dump, and a copy of the folder.
"""

EXAMPLES = """\
examples:
  seqplan backup seqplan.db -o seqplan.backup.tar
  seqplan restore seqplan.backup.tar --store restored.db
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(add_option, parser)
    add("store", metavar="STORE", help="the SQLite file of serve --store")
    add("--files DIR", help="uploaded arrays; default STORE.files")
    add("-o --output FILE", required=True)


def run(args: argparse.Namespace) -> int:
    """Run the command. ``StoreError`` for a store that cannot be copied."""
    # Imported here: no other command needs the database.
    from seqplan.api.store.backup import write_backup
    from seqplan.api.store.read_only import find_database
    from seqplan.api.store.store import default_files

    database = find_database(args.store, "Use pg_dump for PostgreSQL, and copy the folder of files")
    check_output(args.output, database)
    arrays = write_backup(database, args.files or default_files(str(database)), args.output)
    size = args.output.stat().st_size / 2**20
    print(f"written: {args.output}: the database and {arrays:,} arrays, {size:,.1f} MiB")
    return 0
