"""A store in each kind of database."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seqplan.api.store.store import Store

Opener = Callable[[], Store]


@pytest.fixture(params=["sqlite", "postgresql"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same store again and again, the earlier one closed."""
    url = str(tmp_path / "store.db")
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql_url")
    stores: list[Store] = []

    def again() -> Store:
        if stores:
            stores.pop().close()
        stores.append(Store(url, tmp_path / "files"))
        return stores[-1]

    yield again
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Opener) -> Store:
    """A store that is opened once."""
    return opened()
