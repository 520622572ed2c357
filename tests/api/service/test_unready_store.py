"""A store that goes while a service starts is waited for; a job that ends well has no error."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from planned_files import PlannedFiles
from service_process import wait_until
from sqlalchemy import create_engine, make_url, text

from seqplan.api.service.service import Service
from seqplan.api.store.errors import StoreUnavailable
from seqplan.api.store.rows import JobRow, get
from seqplan.api.store.store import Store
from seqplan.api.store.tables.batches import add_batches
from seqplan.api.store.tables.jobs import add_job
from seqplan.api.store.tables.proposals import put_proposal
from seqplan.planner.batches.batch import Batch

JOB = JobRow(id="j", proposal="p", seed=0, look_ahead=2, world_size=4, last_step=0)


def _fill(store: Store, proposal: str, job: JobRow) -> None:
    with store.writing() as connection:
        put_proposal(connection, "p", {}, proposal)
        add_job(connection, job)
        add_batches(connection, "j", [Batch(0, (0,), (10,))])


def _job(store: Store) -> JobRow:
    with store.reading() as connection:
        row = get(connection, JobRow, "j")
    assert row is not None
    return row


@contextmanager
def _closed(url: str) -> Iterator[None]:
    """The database takes nobody, and has thrown out all that were there."""
    database = make_url(url).database
    other = create_engine(make_url(url).set(database="template1"), isolation_level="AUTOCOMMIT")
    with other.connect() as connection:
        connection.execute(text(f"ALTER DATABASE {database} ALLOW_CONNECTIONS false"))
        try:
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
            connection.execute(text(end), {"name": database})
            yield
        finally:
            connection.execute(text(f"ALTER DATABASE {database} ALLOW_CONNECTIONS true"))
    other.dispose()


def test_a_start_while_the_database_goes_down(
    postgresql_url: str, tmp_path: Path, dense: PlannedFiles
) -> None:
    store = Store(postgresql_url, tmp_path)
    _fill(store, dense.proposal.read_text(), JOB)
    service = Service(store)
    with _closed(postgresql_url):
        with pytest.raises(StoreUnavailable):
            _job(store)
        service.start()
        assert service.job("j") is None
    wait_until(lambda: service.job("j") is not None)
    service.stop()
    store.close()


def test_a_job_that_ends_well_keeps_no_error(store: Store, dense: PlannedFiles) -> None:
    _fill(
        store, dense.proposal.read_text(), JobRow(**{**vars(JOB), "failed_step": 0, "error": "x"})
    )
    service = Service(store)
    service.start()
    wait_until(lambda: _job(store).state != "planning")
    row = _job(store)
    assert (row.state, row.failed_step, row.error) == ("planned", None, None)
    service.stop()
