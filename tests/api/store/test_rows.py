"""Records and the tables that they are rows of."""

from dataclasses import fields, replace

import pytest

from seqplan.api.store import schema
from seqplan.api.store.rows import (
    JobOutline,
    JobRow,
    LengthsRow,
    ListedJob,
    ListedLengths,
    ListedProfile,
    ListedProposal,
    ProfileRow,
    ProposalRow,
    Row,
    columns,
    get,
    page,
)
from seqplan.api.store.store import Store
from seqplan.api.store.tables.jobs import add_job
from seqplan.api.store.tables.profiles import profile_ids

WHOLE = (ProfileRow, LengthsRow, ProposalRow, JobRow)
PARTS = (ListedProfile, ListedLengths, ListedProposal, ListedJob, JobOutline)


@pytest.mark.parametrize("kind", WHOLE)
def test_a_whole_row_has_the_columns_of_its_table_in_order(kind: type[Row]) -> None:
    assert [field.name for field in fields(kind)] == [column.name for column in kind.table.c]


@pytest.mark.parametrize("kind", [*WHOLE, *PARTS])
def test_optional_fields_have_nullable_columns(kind: type[Row]) -> None:
    for field in fields(kind):
        assert ("None" in str(field.type)) == bool(kind.table.c[field.name].nullable), field.name


def test_jobs_page_by_page(store: Store) -> None:
    jobs = [JobRow(id=f"j{k}", proposal="p", seed=k, look_ahead=2, world_size=2) for k in range(5)]
    with store.writing() as connection:
        for job in jobs:
            add_job(connection, job)
    with store.reading() as connection:
        stored = [get(connection, JobRow, job.id) for job in jobs]
        assert len({row.key for row in stored if row is not None}) == len(jobs)
        jobs = [
            replace(job, key=row.key, asked_at=row.asked_at)
            for job, row in zip(jobs, stored, strict=True)
            if row is not None
        ]
        assert page(connection, JobRow, "", 3) == (jobs[:3], "j2")
        assert page(connection, JobRow, "j2", 3) == (jobs[3:], None)
        assert page(connection, JobRow, "j4", 3) == ([], None)
        outline = get(connection, JobOutline, "j1")
        assert outline is not None
        assert columns(outline) == {
            name: value for name, value in columns(jobs[1]).items() if name in columns(outline)
        } | {"id": "j1"}
        assert get(connection, JobRow, "j9") is None


def test_a_profile_is_known_by_id_and_name(store: Store) -> None:
    with store.writing() as connection:
        rows = [{"id": key, "name": "n", "document": "{}"} for key in ("a", "b")]
        connection.execute(schema.profiles.insert(), rows)
        assert profile_ids(connection, "a") == ["a"]
        assert sorted(profile_ids(connection, "n")) == ["a", "b"]
        assert profile_ids(connection, "c") == []
