"""The table of uploaded profiles."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select

from seqplan.api.store import schema
from seqplan.api.store.rows import ListedProfile, ProfileRow, columns, get
from seqplan.costs.profile import Profile


def put_profile(connection: Connection, profile: Profile, document: str) -> str:
    """Keep a profile and return its id, the hex of its digest."""
    key = profile.digest.removeprefix("sha256:")
    if get(connection, ListedProfile, key) is None:
        row = ProfileRow(id=key, name=profile.name, document=document)
        connection.execute(insert(schema.profiles).values(columns(row)))
    return key


def profile_ids(connection: Connection, id_or_name: str) -> list[str]:
    """Return the ids of the profiles that have this id or name; names may be used twice."""
    table = schema.profiles
    query = select(table.c.id).where((table.c.id == id_or_name) | (table.c.name == id_or_name))
    return [str(key) for key in connection.execute(query).scalars()]
