"""A service with a proposal and lengths in it, shared by tests that only add to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgresql_server import ABSENT, postgresql, programs
from service_process import serving
from stocked_service import Stocked, stock


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stocked]:
    folder = tmp_path_factory.mktemp("service")
    with serving("--store", folder / "store.db", "--port", 0) as served:
        yield stock(served)


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """A PostgreSQL database that tests share; each leaves it empty."""
    pytest.importorskip("psycopg", reason="no psycopg: install seqplan[postgresql]")
    if programs() is None:
        pytest.skip(ABSENT)
    with postgresql() as url:
        yield url
