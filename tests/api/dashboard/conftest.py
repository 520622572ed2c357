"""A service with jobs of several states, and a browser whose console stays empty."""

from collections.abc import Iterator

import pytest
from browser import Page
from dashboard_page import STEPS
from measuring_ranks import measure
from service_process import serving_here
from stocked_service import Stocked, change_rows, stock


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stocked]:
    """Jobs ``live``, ``waiting`` for its ranks and revised, and ``slower``, with slow ranks.

    Ranks of ``slower`` took 1.3 times the prediction, and planning its first step took long."""
    store = tmp_path_factory.mktemp("dashboard") / "store.db"
    with serving_here(store) as served:
        stocked = stock(served)
        stocked.job("live", 60, look_ahead=STEPS)
        stocked.job("slower", STEPS, look_ahead=STEPS)
        stocked.job("waiting", 60, look_ahead=2)
        stocked.revise("waiting")
        measure(served, "live", range(4), 1.0)
        measure(served, "slower", range(STEPS), 1.3)
        slower = "(SELECT key FROM jobs WHERE id = 'slower')"
        times = "CASE WHEN step = 0 THEN 1750 ELSE 10 + 10 * (step % 2) END"
        change_rows(store, f"UPDATE plans SET planning_ms = {times} WHERE job = {slower}")
        yield stocked


@pytest.fixture
def clean(page: Page) -> Iterator[None]:
    """A wide, light page before; nothing to complain of in the console after."""
    page.size(1280, 900)
    page.prefers()
    page.log()
    yield
    assert page.log() == []
    page.open("about:blank")
