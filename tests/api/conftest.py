"""A service with a proposal and lengths in it, shared by tests that only add to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgresql_server import ABSENT, postgresql, programs
from service_process import serving
from sqlalchemy import create_engine
from stocked_service import Stocked, stock

from seqplan.api.store import schema


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stocked]:
    folder = tmp_path_factory.mktemp("service")
    with serving("--store", folder / "store.db", "--port", 0) as served:
        yield stock(served)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of a PostgreSQL database that tests share."""
    pytest.importorskip("psycopg", reason="no psycopg: install seqplan[postgresql]")
    if programs() is None:
        pytest.skip(ABSENT)
    with postgresql() as url:
        yield url


@pytest.fixture
def postgresql_url(postgresql_server: str) -> Iterator[str]:
    """A PostgreSQL database that is empty, and is left so whatever a test does."""
    yield postgresql_server
    engine = create_engine(postgresql_server)
    schema.metadata.drop_all(engine)
    engine.dispose()
