"""A real training job of several processes whose plans come from a real service."""

from pathlib import Path

import pytest
from service_process import serving
from training_ranks import train, write_small_job

WORLD, STEPS = 2, 4


@pytest.mark.parametrize("fan_out_ranks", [WORLD, WORLD + 1])
def test_ranks_train_from_a_sidecar_and_report_times(tmp_path: Path, fan_out_ranks: int) -> None:
    """Rank 0 acts for all from ``fan_out_ranks`` on, below it each for itself."""
    job = write_small_job(tmp_path, WORLD, STEPS)
    with serving("--job", job, command="sidecar") as served:
        losses = train(
            served.url,
            "job",
            WORLD,
            tmp_path / "checkpoints",
            "--fan-out-ranks",
            str(fan_out_ranks),
        )
        assert list(losses) == list(range(STEPS))
        assert served.ok("GET", "/v1/jobs/job")["acknowledged"] == [STEPS - 1] * WORLD
        steps = served.ok("GET", "/v1/jobs/job/steps")["items"]
        assert [step["ranks_acknowledged"] for step in steps] == [WORLD] * STEPS
        assert all(step["measured_ms"] > 0 for step in steps)
        each = WORLD * STEPS if fan_out_ranks > WORLD else 0
        metrics = served.send("GET", "/metrics").body.decode()
        count = 'seqplan_request_seconds_count{kind="acknowledgement"}'
        assert f"{count} {each:.1f}" in metrics.splitlines()
        calibration = served.ok("GET", "/v1/jobs/job/calibration")
        assert calibration["pipelines"]["measured"] > 0, calibration
