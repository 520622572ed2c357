"""Ranks that stop at a checkpoint, and fewer ranks that go on from it by a continuing job."""

from pathlib import Path

import numpy as np
import pytest
from service_process import serving_here
from training_ranks import ROOT, train

STEPS, STOP = 6, 4


def test_four_ranks_stop_and_two_go_on(tmp_path: Path) -> None:
    with serving_here(tmp_path / "s.db") as served:
        ids = served.upload_small(np.load(ROOT / "examples" / "data" / "code.npy")[:500])
        request = {**ids, "max_len": 512, "tokens": 1500}
        four, two = (served.proposal({**request, "gpus": gpus}) for gpus in (4, 2))
        drawn = {"proposal": four, "lengths": ids["lengths"]}
        served.ok("POST", "/v1/jobs", {"id": "four", **drawn, "steps": STEPS})
        checkpoints = tmp_path / "checkpoints"
        expected = train(served.url, "four", 4, checkpoints, "--checkpoint-every", str(STOP))
        assert sorted(expected) == list(range(STEPS))
        # The checkpoint is that before step STOP: what came after it is done again, by two.
        going = {"id": "two", "proposal": two, "continues": {"job": "four", "step": STOP}}
        served.ok("POST", "/v1/jobs", going)
        after = train(served.url, "two", 2, checkpoints)
        # The same sequences, states and optimizer: sums in another order, nothing else.
        assert sorted(after) == list(range(STOP, STEPS))
        for step, loss in after.items():
            assert loss == pytest.approx(expected[step], rel=1e-4)
        assert served.ok("GET", "/v1/jobs/two")["acknowledged"] == [STEPS - 1] * 2
