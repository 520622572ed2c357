"""``seqplan restore``: a store from a file of ``seqplan backup``."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from seqplan.api.cli.framework.options import add_option

DESCRIPTION = """\
Make a SQLite store and its folder of uploaded arrays from a file of seqplan backup. Nothing is
overwritten: neither may exist. For PostgreSQL: pg_restore.
"""

EXAMPLES = """\
example:
  seqplan restore seqplan.backup.tar --store restored.db && seqplan serve --store restored.db
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(add_option, parser)
    add("backup", metavar="FILE", type=Path, help="of seqplan backup")
    add("--store PATH", required=True, help="the new SQLite file")
    add("--files DIR", help="uploaded arrays; default STORE.files")


def run(args: argparse.Namespace) -> int:
    """Run the command. ``StoreError`` if there is a store, and for a file that is no backup."""
    # Imported here: no other command needs the database.
    from seqplan.api.store.backup import restore_backup
    from seqplan.api.store.errors import StoreError
    from seqplan.api.store.store import default_files, parse_address

    where, database = parse_address(args.store)
    if database is None:
        raise StoreError(f"{where}: must be a SQLite store. Use pg_restore for PostgreSQL")
    files = args.files or default_files(database)
    arrays = restore_backup(args.backup, Path(database), files)
    print(f"written: {database} and {files}: {arrays:,} arrays")
    return 0
