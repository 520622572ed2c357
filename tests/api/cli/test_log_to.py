"""``seqplan log --to``: the same records from files, a service and its store; bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import call, complaint, succeeded
from measuring_ranks import measure
from plan_builder import pipeline, plan_of, write_file
from planned_files import PlannedFiles
from service_process import serving_here
from stocked_service import deliver, stock

from seqplan import Scheme
from seqplan.plans.format.plan_file import read_plans
from seqplan.plans.plan import MicroBatch


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_plans_and_measured_times_make_records(dense: PlannedFiles, tmp_path: Path) -> None:
    times, output = tmp_path / "times.jsonl", tmp_path / "steps.jsonl"
    plans = list(read_plans(dense.plans))
    lines = [
        {"step": plan.step, "rank": rank, "measured_ms": 2 * pipeline.predicted_ms}
        for plan in plans
        for pipeline in plan.pipelines
        for rank in pipeline.ranks
        if pipeline.micro_batches
    ]
    times.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = ("--plans", dense.plans, "--measurements", times, "--profile", dense.profile)
    printed = succeeded(call("log", *files, "--to", f"jsonl:{output}"))
    assert printed == f"written: {len(plans)} steps to jsonl:{output}\n"
    written = records(output)
    assert [record["step"] for record in written] == [plan.step for plan in plans]
    for record, plan in zip(written, plans, strict=True):
        assert record["measured_ms"] == 2 * max(p.predicted_ms for p in plan.pipelines)
        assert record["gap"] == plan.gap
        assert record["strategy"] == plan.strategy_text
        assert record["mfu"] < record["predicted_mfu"]


def test_rates_require_the_times_of_the_ranks_with_work(tmp_path: Path) -> None:
    output, times = tmp_path / "steps.jsonl", tmp_path / "times.jsonl"
    busy = tuple(pipeline(Scheme(), (r,), MicroBatch((r,), 8, 8, 5.0)) for r in range(2))
    idle = pipeline(Scheme(), (2,))
    plans = write_file(tmp_path / "p.jsonl", [plan_of((*busy, idle), (8, 8), 5.0, world_size=4)])
    lines = [{"step": 0, "rank": rank, "measured_ms": 6.0 + rank} for rank in (1, 2, 3)]
    times.write_text("".join(json.dumps(line) + "\n" for line in lines))
    succeeded(call("log", "--plans", plans, "--measurements", times, "--to", f"jsonl:{output}"))
    (record,) = records(output)
    assert (record["measured_ms"], record["ranks_measured"]) == (7.0, 1)
    assert record["error"] is None
    assert record["tokens_per_s"] is None


def test_a_service_and_its_store_give_the_same_records(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    outputs = [tmp_path / name for name in ("service.jsonl", "store.jsonl")]
    with serving_here(store) as served:
        stock(served).job("job", 3)
        deliver(served, served, 0, 3)
        measure(served, "job", [0], 1.1)
        source = ("--server", served.url, "--job", "job")
        succeeded(call("log", *source, "--to", f"jsonl:{outputs[0]}"))
        none = call("log", *source, "--after", 99, "--to", f"jsonl:{tmp_path / 'none.jsonl'}")
        assert (none.code, none.out) == (0, "")
        assert none.err == "no steps, nothing written\n"
    succeeded(call("log", "--store", store, "--job", "job", "--to", f"jsonl:{outputs[1]}"))
    assert records(outputs[0]) == records(outputs[1])
    assert [record["step"] for record in records(outputs[0])] == [0, 1, 2]
    errors = [record["error"] for record in records(outputs[0])]
    assert errors == [pytest.approx(0.1), None, None]
    assert all(record["planning_ms"] > 0 for record in records(outputs[0]))
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--to", "csv:steps.csv"], "must be one of jsonl:FILE, tensorboard:FOLDER, "),
        (["--to", "jsonl:"], "must be one of jsonl:FILE, "),
        ([], "--plans requires --to"),
        (["--to", "jsonl:{output}", "--json"], "--json: --to writes records"),
        (["--to", "jsonl:{output}", "--job", "job"], "--job is for --server and --store"),
        (["--to", "jsonl:{plans}"], "is an input of this command"),
        (["--to", "jsonl:{output}", "--profile", "gpt-13b-a100-40gb"], "planned by another one"),
        (["--to", "jsonl:{output}", "--measurements", "{times}"], "step 7000 is not in"),
        (["--to", "jsonl:{output}", "--measurements", "{foreign}"], "measured on rank 4000"),
    ],
)
def test_bad_input_is_rejected_before_anything_is_written(
    options: list[str], problem: str, dense: PlannedFiles, output: Path, tmp_path: Path
) -> None:
    times, foreign = tmp_path / "times.jsonl", tmp_path / "foreign.jsonl"
    times.write_text('{"step":7000,"rank":0,"measured_ms":1.5}\n')
    foreign.write_text('{"step":0,"rank":4000,"measured_ms":1.5}\n')
    names = {"output": output, "plans": dense.plans, "times": times, "foreign": foreign}
    given = [option.format(**names) for option in options]
    outcome = call("log", "--plans", dense.plans, *given)
    assert outcome.code == 2
    assert problem in outcome.err
    assert "Traceback" not in outcome.err
    assert not output.exists()


def test_records_belong_to_a_job_or_plans(tmp_path: Path) -> None:
    to = ("--to", f"jsonl:{tmp_path / 'steps.jsonl'}")
    assert "--to is for the steps of a job" in complaint(
        call("log", "--server", "http://127.0.0.1:9", *to)
    )
    job = ("--server", "http://127.0.0.1:9", "--job", "job")
    assert complaint(call("log", *job, "--run", "x")) == "--run requires --to"
    assert complaint(call("log", *job, *to, "--measurements", "t.jsonl")) == (
        "--measurements requires --plans"
    )
