"""The Chrome trace of a step: events that do not overlap, durations that are the plan's costs."""

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from plan_builder import plan_of, write_file

from seqplan import Plan, Profile, Scheme
from seqplan.api.cli import main
from seqplan.api.cli.trace import trace
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.plans.plan import MicroBatch, PlannedPipeline
from seqplan.plans.schedule import schedule

Events = list[dict[str, Any]]


def pipeline(
    scheme: Scheme, first: int, batches: list[tuple[int, ...]], costs: list[float], **more: Any
) -> PlannedPipeline:
    """A pipeline on consecutive ranks; its sequences have 100 tokens each."""
    micro = tuple(
        MicroBatch(
            sequences, 100 * len(sequences), scheme.pad_micro_batch([100] * len(sequences)), cost
        )
        for sequences, cost in zip(batches, costs, strict=True)
    )
    predicted = round(sum(costs) + (scheme.pp - 1) * max(costs, default=0.0), 3)
    ranks = tuple(range(first, first + scheme.gpus))
    return PlannedPipeline(scheme, ranks, micro, predicted, **more)


def make_plan(*pipelines: PlannedPipeline) -> Plan:
    count = sum(len(micro.sequences) for pipeline in pipelines for micro in pipeline.micro_batches)
    predicted = round(schedule(pipelines).makespan_ms, 3)
    return plan_of(pipelines, (100,) * count, predicted, gap=0.0, step=7)


PIPELINED = make_plan(
    pipeline(Scheme(tp=2, pp=3), 0, [(0,), (1, 2), (3,)], [10.001, 33.337, 7.1]),
    pipeline(Scheme(tp=1, pp=2), 6, [(4,), (5,)], [3.333, 20.2]),
    pipeline(Scheme(tp=1, pp=2), 8, [], []),
)
REFORMED = make_plan(
    pipeline(Scheme(ulysses=4), 0, [(0, 1)], [30.3]),
    pipeline(Scheme(ulysses=2), 0, [(2,)], [5.5]),
    pipeline(Scheme(ulysses=2), 2, [(3,), (4,)], [7.7, 1.1]),
)
MICRO_STEPS = make_plan(
    pipeline(Scheme(ulysses=2), 0, [(0,)], [30.3], micro_step=0),
    pipeline(Scheme(ulysses=2), 2, [(1,)], [11.2], micro_step=0),
    pipeline(Scheme(ring=4), 0, [(2,)], [9.9], micro_step=1),
)
PLANS = pytest.mark.parametrize("plan", [PIPELINED, REFORMED, MICRO_STEPS])


def passes(document: dict[str, Any]) -> Events:
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


@PLANS
def test_events_of_a_thread_follow_one_another(plan: Plan) -> None:
    threads: dict[tuple[int, int], Events] = defaultdict(list)
    for event in passes(trace(plan)):
        threads[event["pid"], event["tid"]].append(event)
    for events in threads.values():
        for earlier, next_one in pairwise(sorted(events, key=lambda event: float(event["ts"]))):
            assert earlier["ts"] + earlier["dur"] <= next_one["ts"] + 1e-6


@PLANS
def test_durations_sum_to_the_costs(plan: Plan) -> None:
    spent: dict[tuple[int, int, int], float] = defaultdict(float)
    phases: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    for event in passes(trace(plan)):
        key = event["pid"], event["tid"], event["args"]["micro_batch"]
        spent[key] += event["dur"] / 1000
        phases[key].append(event["cat"])
        assert event["name"] == event["cat"][0].upper() + str(key[2])
    for index, pipeline in enumerate(plan.pipelines):
        for stage in range(pipeline.scheme.pp):
            for number, micro in enumerate(pipeline.micro_batches):
                assert spent.pop((index, stage, number)) == pytest.approx(micro.cost_ms, abs=1e-5)
                assert phases[index, stage, number] == ["forward", "backward"]
    assert not spent


@PLANS
def test_the_last_event_ends_the_step(plan: Plan) -> None:
    document = trace(plan)
    end = max(event["ts"] + event["dur"] for event in passes(document)) / 1000
    assert end == pytest.approx(simulate_plan_ms(plan), abs=1e-5)
    assert document["otherData"]["simulated_ms"] == pytest.approx(end, abs=1e-5)


def test_ranks_that_form_anew_wait() -> None:
    assert min(event["ts"] for event in passes(trace(REFORMED)) if event["pid"] > 0) == 30300.0


def test_micro_steps_wait_and_are_marked() -> None:
    document = trace(MICRO_STEPS)
    marks = [event for event in document["traceEvents"] if event["ph"] == "i"]
    assert [(mark["name"], mark["ts"]) for mark in marks] == [
        ("micro-step 0", 0.0),
        ("micro-step 1", 30300),
    ]
    assert min(event["ts"] for event in passes(document) if event["pid"] == 2) == 30300.0


def test_events_name_their_passes() -> None:
    events = {
        (event["pid"], event["tid"], event["name"]): event["args"]
        for event in passes(trace(PIPELINED))
    }
    assert events[0, 2, "B1"] == {
        "micro_batch": 1,
        "tokens": 200,
        "padded_tokens": 200,
        "sequences": 2,
        "longest": 100,
        "cost_ms": 33.337,
        "ranks": "4–5",
    }


def test_tracks_have_names() -> None:
    metadata = [event for event in trace(PIPELINED)["traceEvents"] if event["ph"] == "M"]
    names = [event["args"]["name"] for event in metadata if "name" in event["args"]]
    assert names[:2] == ["pipeline 0: tp2.pp3 on ranks 0–5", "stage 0: ranks 0–1"]
    # A pipeline without work is shown as such.
    assert "pipeline 2: pp2 on ranks 8–9" in names


def test_the_verb_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = load_shipped("llama-7b-a800-80gb")
    plan = replace(MICRO_STEPS, provenance=replace(MICRO_STEPS.provenance, profile=profile.digest))
    expected = trace(plan, profile.forward_fraction, f"profile {profile.name}")
    plans, output = write_file(tmp_path / "plans.jsonl", [plan]), tmp_path / "trace.json"
    assert main(["trace", str(plans), "--step", "7", "-o", str(output)]) == 0
    assert capsys.readouterr().out == f"written: {output}\n"
    assert json.loads(output.read_text()) == expected
    assert main(["trace", str(plans), "--step", "7"]) == 0
    assert json.loads(capsys.readouterr().out) == expected


def test_the_profile_gives_the_share_of_forward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(json.dumps(dict(load_shipped("llama-7b-a800-80gb").document)))
    document["forward_fraction"] = 0.25
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document))
    profile = Profile.load(path)

    def traced(digest: str, *more: str) -> dict[str, Any]:
        plan = replace(PIPELINED, provenance=replace(PIPELINED.provenance, profile=digest))
        plans = write_file(tmp_path / "plans.jsonl", [plan])
        assert main(["trace", str(plans), "--step", "7", *more]) == 0
        return json.loads(capsys.readouterr().out)

    assert traced(profile.digest)["otherData"]["forward_fraction_source"].startswith("assumed")
    stated = traced(profile.digest, "--profile", str(path))["otherData"]
    assert (stated["forward_fraction"], stated["forward_fraction_source"]) == (
        0.25,
        f"profile {profile.name}",
    )
    first = next(event for event in passes(traced(profile.digest, "--profile", str(path))))
    assert first["dur"] == pytest.approx(0.25 * 10.001 * 1000)
    by_name = traced(load_shipped("llama-32b-a800-80gb").digest)["otherData"]
    assert by_name["forward_fraction_source"] == "profile llama-32b-a800-80gb"
    plans = write_file(tmp_path / "plans.jsonl", [PIPELINED])
    assert main(["trace", str(plans), "--step", "7", "--profile", str(path)]) == 2
    assert "was planned from another profile than" in capsys.readouterr().err


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans = write_file(tmp_path / "plans.jsonl", [MICRO_STEPS])
    text = plans.read_text()
    output = tmp_path / "trace.json"
    cases = [
        (["--step", "8", "-o", str(output)], "no step 8; it has step 7"),
        (["--step", "7", "-o", str(plans)], "is an input of this command"),
        (["--step", "7", "-o", str(tmp_path)], "is a folder"),
        (["--step", "7", "-o", str(tmp_path / "a" / "b")], "does not exist"),
    ]
    for arguments, message in cases:
        assert main(["trace", str(plans), *arguments]) == 2
        streams = capsys.readouterr()
        assert message in streams.err
        assert streams.err.count("\n") == 1
        assert streams.out == ""
    assert plans.read_text() == text
    assert not output.exists()


def test_an_unsound_plan_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = MICRO_STEPS.pipelines
    micro = MicroBatch((99,), 100, 100, 30.3)
    wrong = PlannedPipeline(first.scheme, first.ranks, (micro,), 30.3, 0)
    plans = write_file(tmp_path / "plans.jsonl", [make_plan(wrong, *others)])
    assert main(["trace", str(plans), "--step", "7"]) == 2
    assert "position 99 is outside" in capsys.readouterr().err
