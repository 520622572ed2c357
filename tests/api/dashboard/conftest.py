"""A browser for the tests of the dashboard, which run where one is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Page, browser, missing


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if lacking := missing():
        pytest.skip(f"no browser for the dashboard: {lacking}")
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened
