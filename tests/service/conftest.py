"""A service with a proposal and lengths in it, shared by tests that only add to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from service_process import serving
from stocked_service import Stocked, stock


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stocked]:
    folder = tmp_path_factory.mktemp("service")
    with serving("--store", folder / "store.db", "--port", 0) as served:
        yield stock(served)
