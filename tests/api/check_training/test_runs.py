"""Plans executed by real processes, compared with one process without plans."""

import json
import math
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_forks import CommandProcess
from command_line import call, complaint, succeeded
from expert_runs import RoutedCase
from plan_builder import write_file
from random_plans import one_pipeline_plan
from small_check import (
    ENDED_S,
    RANKS,
    RUNNING,
    SMALL,
    STEPS,
    have_logs,
    logs,
    planned,
)

from seqplan import Plan, Scheme, read_plans
from seqplan.api.check_training import check as train_check
from seqplan.api.check_training.check import Check, CheckRequest, Gates, first_plans
from seqplan.api.check_training.processes import RankServer, rank_server
from seqplan.api.check_training.runs import check_training
from seqplan.api.cli.check import check_training as check_command
from seqplan.plans.recomputation import MODES


def run_check(plans: Sequence[Plan], server: RankServer) -> Check:
    request = CheckRequest(plans, None, 0, "float64")
    return check_training(request, server=server, progress=lambda *_: None)


@pytest.fixture(scope="module")
def server() -> Iterator[RankServer]:
    """What forks ranks, for the commands of several tests: starting it is most of a short check."""
    with rank_server() as started:
        yield started


@pytest.fixture
def in_server(server: RankServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands called in this process have their ranks from the shared server."""
    monkeypatch.setattr(check_command, "rank_server", lambda: nullcontext(server))


@pytest.mark.usefixtures("in_server")
def test_ranks_agree_with_one_process(plans: Path, server: RankServer) -> None:
    completed = call(
        *("check", "training", "--plans", plans, "--ranks", RANKS, "--steps", 4),
        *("--dtype", "float64", "--json"),
    )
    report = json.loads(succeeded(completed))
    assert report["agrees"] is True
    assert report["model"]["heads"] >= 2
    assert report["parameter_difference"] <= 1e-10
    first_plans = list(read_plans(plans))[:4]
    assert [step["step"] for step in report["steps"]] == [0, 1, 2, 3]
    assert len({step["strategy"] for step in report["steps"]}) > 1  # the strategy changes
    for step, plan in zip(report["steps"], first_plans, strict=True):
        assert step["tokens"] == plan.tokens
        assert step["predicted_ms"] == plan.predicted_ms
        assert step["loss"] == pytest.approx(step["reference_loss"], rel=1e-10)
        assert step["tokens_per_s"] == pytest.approx(1000 * plan.tokens / step["measured_ms"])
    losses = [step["loss"] for step in report["steps"]]
    assert losses[0] == pytest.approx(math.log(256), rel=0.02)  # an untrained model's
    assert len(set(losses)) == 4
    assert have_logs(Path(server.folder), ["server.log"]), "ranks are left behind"


def test_saved_bytes_are_reported_with_the_modes_of_the_plan(server: RankServer) -> None:
    plan = one_pipeline_plan(Scheme(pp=2), [40] * len(MODES), packed=False)
    batches = [
        replace(batch, recompute=mode)
        for batch, mode in zip(plan.pipelines[0].micro_batches, MODES, strict=True)
    ]
    moded = replace(plan, pipelines=(replace(plan.pipelines[0], micro_batches=tuple(batches)),))
    check = run_check([moded, replace(moded, step=1)], server)
    assert check.agrees
    for step in check.steps:
        saved = {batch.recompute: batch.saved_bytes for batch in step.micro_batches}
        assert [(batch.pipeline, batch.place) for batch in step.micro_batches] == [
            (0, place) for place in range(len(MODES))
        ]
        assert tuple(saved) == MODES
        assert saved["none"] > saved["attention_core"] > saved["elementwise"]
        assert saved["elementwise"] > saved["half_products"] > saved["full"]
    reported = check_command.document(check, None)["recomputation"]
    assert tuple(reported) == MODES
    assert {of_mode["micro_batches"] for of_mode in reported.values()} == {2}
    for of_mode in reported.values():
        expected = of_mode["expected_bytes_per_token"]
        assert of_mode["kept_bytes_per_token"] == pytest.approx(expected, rel=0.05)
    lines = check_command.mode_lines(check)
    assert lines[-1].startswith("recomputation full: ")
    assert lines[-1].endswith(" expected, micro-batches: 2")
    plain = run_check([plan], server)
    assert not plain.steps[0].micro_batches
    assert check_command.mode_lines(plain) == []


def test_saved_bytes_have_the_key_heads_that_ulysses_copies(server: RankServer) -> None:
    plan = one_pipeline_plan(Scheme(ulysses=4), [400], packed=False)
    (pipeline,) = plan.pipelines
    moded = tuple(replace(batch, recompute="none") for batch in pipeline.micro_batches)
    plan = replace(plan, pipelines=(replace(pipeline, micro_batches=moded),))
    sizes = train_check.size_model([plan])
    assert sizes.kv_heads < 4
    reported = check_command.document(run_check([plan], server), None)["recomputation"]["none"]
    expected = reported["expected_bytes_per_token"]
    assert reported["kept_bytes_per_token"] == pytest.approx(expected, rel=0.05)


def test_split_experts_agree_with_one_process(server: RankServer, tmp_path: Path) -> None:
    case = RoutedCase(4, 9, expert_parallel=2, tensor=True, modes=True)
    plans = first_plans(write_file(tmp_path / "plans.jsonl", case.plans()), 4, 2)
    check = run_check(plans, server)
    assert check.agrees
    assert len(check.steps) == 2
    assert check.sizes.architecture.experts == 4
    lines = check_command.setting_lines(CheckRequest(plans, None, 0, ""))
    assert "4 experts in each layer, 2 a token, over 2 ranks" in lines[0]


@pytest.mark.usefixtures("in_server")
def test_micro_steps_agree_too(lengths: Path, tmp_path: Path) -> None:
    """Plans for ZeRO-3, in micro-steps whose groups differ."""
    document = {**json.loads(SMALL.read_text("utf-8")), "zero_stage": 3}
    document["memory"]["capacity_bytes"] = 9.7e6  # some 650 tokens a rank
    profile = tmp_path / "micro-steps.json"
    profile.write_text(json.dumps(document))
    plans = planned(tmp_path, lengths, tokens=3000, max_len=1000, steps=2, profile=profile)
    assert any(
        len({pipeline.micro_step for pipeline in plan.pipelines}) > 1 for plan in read_plans(plans)
    )
    completed = call("check", "training", "--plans", plans, "--ranks", RANKS, "--json")
    report = json.loads(succeeded(completed))
    assert report["agrees"] is True
    assert len(report["steps"]) == 2  # all that there are


@pytest.mark.usefixtures("in_server")
def test_groups_that_regroup_within_the_step_agree_too(tmp_path: Path) -> None:
    """A long sequence on all four ranks, which then go on in smaller groups. Trainers without
    regrouping need static groups."""
    document = json.loads(SMALL.read_text("utf-8"))
    document["memory"]["capacity_bytes"] = 3.5e6  # some 200 tokens a rank
    profile, proposal = tmp_path / "profile.json", tmp_path / "proposal.json"
    profile.write_text(json.dumps(document))
    lengths = np.random.default_rng(4).integers(20, 190, 400)
    lengths[::16] = 780
    np.save(tmp_path / "lengths.npy", lengths)
    data = tmp_path / "lengths.npy"
    succeeded(
        call(
            *("propose", "--profile", profile, "--gpus", 4, data),
            *("--max-len", 800, "--tokens", 2500, "-o", proposal),
        )
    )
    plans = {}
    for name, flags in (
        ("fixed", ["--execution", "static"]),
        ("free", []),
        ("two", ["--workers", 2]),
    ):
        file = tmp_path / f"{name}.jsonl"
        succeeded(call("plan", "--proposal", proposal, data, "--steps", 3, *flags, "-o", file))
        plans[name] = list(read_plans(file))
    assert plans["two"] == plans["free"]
    for fixed, free in zip(plans["fixed"], plans["free"], strict=True):
        assert fixed.strategy.gpus <= 4
        assert free.predicted_ms <= fixed.predicted_ms
    assert max(plan.strategy.gpus for plan in plans["free"]) > 4
    report = json.loads(
        succeeded(
            call(
                *("check", "training", "--plans", tmp_path / "free.jsonl", "--ranks", 4),
                *("--dtype", "float64", "--json"),
            )
        )
    )
    assert report["agrees"] is True
    for step in report["steps"]:
        assert step["loss"] == pytest.approx(step["reference_loss"], rel=1e-10)


@pytest.mark.usefixtures("in_server")
def test_runs_that_differ(plans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any tolerance float32 cannot agree: the result and the exit code must show it."""
    monkeypatch.setitem(train_check.GATES, "float32", Gates(0.0, 0.0, 0.0))
    data = tmp_path / "tokens.jsonl"
    first = next(read_plans(plans))
    held = dict(zip(first.ids, first.lengths, strict=True))
    rng = np.random.default_rng(0)
    data.write_text(
        "".join(
            f"{rng.integers(0, 50_000, held.get(id, 1)).tolist()}\n" for id in range(max(held) + 1)
        )
    )
    outcome = call(
        "check", "training", "--plans", plans, "--ranks", RANKS, "--steps", 1, "--data", data
    )
    assert outcome.code == 1
    lines = outcome.out.splitlines()
    assert lines[1].startswith(f"tokens of {data}, ids modulo 256;")
    assert lines[-1].startswith("THE RUNS DIFFER: limits are 0 on losses")
    row = lines[5].split()
    assert row[0] == "0"
    assert float(row[2]) == pytest.approx(float(row[3]), rel=1e-5)


def test_rows_come_as_steps_are_done(plans: Path, temporary: Path) -> None:
    """The first rows are there while the ranks still run, and before the last; stopped there,
    none is left behind."""
    with CommandProcess(
        *("check", "training", "--plans", plans, "--ranks", RANKS, "--steps", STEPS),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as command:
        assert command.stdout is not None
        table = [command.stdout.readline() for _ in range(6)]
        assert table[3].split()[:2] == ["step", "tokens"]
        assert table[5].split()[0] == "0"
        assert have_logs(temporary, RUNNING)
        # A stopped process would have run the other steps, and then printed its result.
        command.send_signal(signal.SIGINT)
        rest = command.stdout.read().splitlines()
        assert command.wait(ENDED_S) == 130
    assert len(rest) < STEPS - 1
    assert [row.split()[0] for row in rest] == [f"{at}" for at in range(1, len(rest) + 1)]
    assert logs(temporary) == {}


@pytest.mark.usefixtures("in_server")
def test_fewer_plans_than_requested(plans: Path, tmp_path: Path) -> None:
    """Rejected before anything starts; steps beyond the requested ones do not matter."""
    two = write_file(tmp_path / "two.jsonl", list(read_plans(plans))[:2])
    outcome = call("check", "training", "--plans", two, "--ranks", RANKS, "--steps", 99)
    assert outcome.code == 0
    assert f"seqplan: {two}: has 2 plans, not 99: all are run" in outcome.err.splitlines()
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines[5:7]] == ["0", "1"]
    assert "measured: the slowest rank's whole step" in outcome.out
    assert "which the ranks share with the one process" in outcome.out
    assert lines[-1].startswith("the runs agree")
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text(two.read_text() + '{"damaged')
    report = json.loads(
        succeeded(
            call("check", "training", "--plans", damaged, "--ranks", RANKS, "--steps", 2, "--json")
        )
    )
    assert len(report["steps"]) == 2
    # A damaged one among them fails before any rank is started.
    message = complaint(
        call("check", "training", "--plans", damaged, "--ranks", RANKS, "--steps", 3)
    )
    assert message.startswith(f"{damaged}:3: ")


@pytest.mark.usefixtures("in_server")
def test_tensor_and_pipeline_parallel_plans_agree_too(tmp_path: Path) -> None:
    """One step each of two ranks of tensor, pipeline, Ulysses and ring parallelism."""
    schemes = [Scheme(tp=2), Scheme(pp=2), Scheme(ulysses=2), Scheme(ring=2)]
    path = write_file(
        tmp_path / "plans.jsonl",
        (
            one_pipeline_plan(scheme, [70, 9, 31], step=step, packed=False)
            for step, scheme in enumerate(schemes)
        ),
    )
    arguments = ("check", "training", "--plans", path, "--ranks", 2, "--dtype", "float64", "--json")
    document = json.loads(succeeded(call(*arguments)))
    assert document["agrees"] is True
    assert [step["strategy"] for step in document["steps"]] == ["1×tp2", "1×pp2", "1×u2", "1×r2"]
    assert document["parameter_difference"] <= 1e-12


@pytest.mark.usefixtures("in_server")
def test_data_that_does_not_hold_the_plan(plans: Path, tmp_path: Path) -> None:
    data = tmp_path / "tokens.jsonl"
    data.write_text("[1, 2, 3]\n")
    completed = call("check", "training", "--plans", plans, "--ranks", RANKS, "--data", data)
    assert completed.code == 2
    line = completed.err.splitlines()[-1]
    assert "of step 0: the data has no such id, it has 1 samples" in line
    assert "Traceback" not in completed.err
