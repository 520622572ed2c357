"""A browser for the tests of the dashboard, which run where one is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The service and its ranks are those of the tests of the service.
sys.path.insert(0, str(Path(__file__).parents[2] / "service"))

from browser import Page, browser, missing


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if lacking := missing():
        pytest.skip(f"no browser for the dashboard: {lacking}")
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found
