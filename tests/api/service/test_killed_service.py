"""A service that is killed and begun again delivers every step, as if it had not been."""

import json
import signal
from pathlib import Path

import pytest
from service_process import serving, serving_here
from stocked_service import WORLD, deliver, stock

from seqplan.runtime.errors import EndOfPlans
from seqplan.runtime.sources.http_source import HttpSource

STEPS = 12


def test_killed_in_the_middle(tmp_path: Path) -> None:
    store = ("--store", tmp_path / "killed.db", "--port", 0)
    with serving_here(tmp_path / "undisturbed.db") as served:
        stock(served).job("job", STEPS)
        expected = deliver(served, served, 0, STEPS)
        lines = [served.send("GET", f"/v1/jobs/job/plans/{k}").body for k in range(STEPS)]
    assert len(set(expected)) == STEPS

    digests: list[str] = []
    with serving(*store) as served:
        stock(served).job("job", STEPS)
        digests += deliver(served, served, 0, 5)
        served.process.send_signal(signal.SIGKILL)
        served.process.wait()
    with serving(*store) as served:
        assert served.ok("GET", "/v1/jobs/job")["acknowledged"] == [4] * WORLD
        digests += deliver(served, served, 5, 6)
        served.process.send_signal(signal.SIGKILL)
        served.process.wait()
    with serving_here(tmp_path / "killed.db") as served:
        digests += deliver(served, served, 6, STEPS)
        again = [served.send("GET", f"/v1/jobs/job/plans/{k}").body for k in range(STEPS)]
        source = HttpSource(served.url, "job")
        with pytest.raises(EndOfPlans, match=f"ends with step {STEPS - 1}"):
            source.view(STEPS, 0, 5)
        source.close()
    assert digests == expected
    assert again == lines
    assert [json.loads(line)["step"] for line in again] == list(range(STEPS))
