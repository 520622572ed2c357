"""A service that is killed and begun again delivers every step, as if it had not been."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from service_process import Served, serving
from stocked_service import WORLD, stock

from seqplan.runtime.errors import EndOfPlans
from seqplan.runtime.http_source import HttpSource

STEPS = 12


def _deliver(served: Served, first: int, last: int) -> list[str]:
    """Ask for and acknowledge steps as ranks do; the digests."""
    source = HttpSource(served.url, "job")
    digests = []
    for step in range(first, last):
        views = [source.view(step, rank, 60) for rank in range(WORLD)]
        assert len({view.digest for view in views}) == 1
        for view in views:
            source.acknowledge(step, view.rank, view.digest)
        digests.append(str(views[0].digest))
    source.close()
    return digests


def test_killed_in_the_middle(tmp_path: Path) -> None:
    def store(name: str) -> tuple[str, Path, str, int]:
        return ("--store", tmp_path / name, "--port", 0)

    with serving(*store("undisturbed.db")) as served:
        stock(served).job("job", STEPS)
        expected = _deliver(served, 0, STEPS)
        lines = [served.ask("GET", f"/v1/jobs/job/plans/{k}").body for k in range(STEPS)]
    assert len(set(expected)) == STEPS

    found: list[str] = []
    with serving(*store("killed.db")) as served:
        stock(served).job("job", STEPS)
        found += _deliver(served, 0, 5)
        served.process.send_signal(signal.SIGKILL)
        served.process.wait()
    with serving(*store("killed.db")) as served:
        job = served.ok("GET", "/v1/jobs/job")
        assert job["acknowledged"] == [4] * WORLD
        found += _deliver(served, 5, 6)
        served.process.send_signal(signal.SIGKILL)
        served.process.wait()
    with serving(*store("killed.db")) as served:
        found += _deliver(served, 6, STEPS)
        again = [served.ask("GET", f"/v1/jobs/job/plans/{k}").body for k in range(STEPS)]
        source = HttpSource(served.url, "job")
        with pytest.raises(EndOfPlans, match=f"ends with step {STEPS - 1}"):
            source.view(STEPS, 0, 5)
        source.close()
    assert found == expected
    assert again == lines
    assert [json.loads(line)["step"] for line in again] == list(range(STEPS))
