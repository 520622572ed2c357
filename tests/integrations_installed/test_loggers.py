"""Step records in the real loggers, offline, read back by the readers of each."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from golden_plans import heterogeneous

from seqplan.api.loggers.destinations import Destination
from seqplan.api.loggers.step_metrics import StepMetrics


@pytest.fixture
def records() -> list[StepMetrics]:
    return [
        StepMetrics.from_plan(
            plan, planning_ms=1.5, measured_ms=9e3, ranks_measured=plan.world_size
        )
        for plan in heterogeneous()
    ]


def write(text: str, records: list[StepMetrics]) -> None:
    destination = Destination.parse(text)
    destination.check_installed()
    destination.write(records, "run-1")


def test_tensorboard_reads_the_events(records: list[StepMetrics], tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from tensorboard.util.tensor_util import make_ndarray

    write(f"tensorboard:{tmp_path}", records)
    read = accumulators.EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
    read.Reload()
    names = {f"seqplan/{name}" for name in records[0].scalars()} | {"seqplan/strategy"}
    assert set(read.Tags()["tensors"]) | set(read.Tags()["scalars"]) == names
    for name, value in records[0].scalars().items():
        event = read.Scalars(f"seqplan/{name}")[0]
        assert event.step == records[0].step
        assert event.value == pytest.approx(value)
    texts = [make_ndarray(e.tensor_proto)[0] for e in read.Tensors("seqplan/strategy")]
    assert [text.decode() for text in texts] == [record.strategy for record in records]


def read_log(data: bytes) -> Iterator[bytes]:
    """Yield the records of W&B's run file: LevelDB's log format after a header of 7 bytes."""
    block, whole_or_last, place, parts = 32768, (1, 4), 7, b""
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        if place + 7 + length > len(data):
            return
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in whole_or_last:
            yield parts
            parts = b""


def test_wandb_keeps_an_offline_run(
    records: list[StepMetrics], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    write("wandb:project-1", records)
    (path,) = tmp_path.rglob("run-*.wandb")
    rows, projects, written, ends = [], [], [], time.monotonic() + 60
    # W&B's process may still write when the run is finished; the last record is its exit.
    while "exit" not in [read.WhichOneof("record_type") for read in written]:
        assert time.monotonic() < ends
        time.sleep(0.05)
        written = [Record.FromString(data) for data in read_log(path.read_bytes())]
    for read in written:
        if read.WhichOneof("record_type") == "run":
            projects.append((read.run.project, read.run.display_name))
        if read.WhichOneof("record_type") == "history":
            items = read.history.item
            rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
    assert set(projects) == {("project-1", "run-1")}
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        assert row["_step"] == record.step
        assert row["seqplan/strategy"] == record.strategy
        for name, value in record.scalars().items():
            assert row[f"seqplan/{name}"] == value


def test_wandb_without_an_account_is_one_line(
    records: list[StepMetrics], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    wandb.teardown()  # settings are read once a process
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"^wandb:project-1: .*WANDB_MODE=offline$"):
        write("wandb:project-1", records)


def test_mlflow_keeps_metrics_and_records(
    records: list[StepMetrics], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    write("mlflow:experiment-1", records)
    write("mlflow:experiment-1", records)  # a second run of the experiment that is there
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("experiment-1")
    runs = client.search_runs([experiment.experiment_id])
    assert [(run.info.run_name, run.info.status) for run in runs] == [("run-1", "FINISHED")] * 2
    for name in records[0].scalars():
        history = client.get_metric_history(runs[0].info.run_id, f"seqplan/{name}")
        written = [(record.step, record.scalars()[name]) for record in records]
        assert sorted((metric.step, metric.value) for metric in history) == written
    path = client.download_artifacts(runs[0].info.run_id, "seqplan/steps.jsonl", str(tmp_path))
    lines = Path(path).read_text("utf-8").splitlines()
    assert lines == [record.to_json() for record in records]


def test_mlflow_without_a_server_is_one_line(
    records: list[StepMetrics], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"^mlflow:experiment-1: .*MLFLOW_TRACKING_URI"):
        write("mlflow:experiment-1", records)
