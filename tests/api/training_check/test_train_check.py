"""Plans executed by real processes beside one that knows none; no process is left behind."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import COMMAND, call, complaint, process, succeeded
from random_plans import one_pipeline_plan

from seqplan.api.training_check import check as train_check
from seqplan.api.training_check.check import Check, CheckedStep, Gates, checked_sizes, relative
from seqplan.api.training_check.processes import started
from seqplan.plans.format.codec import from_json, to_json
from seqplan.plans.format.plan_file import read_plans
from seqplan.plans.plan import Plan
from seqplan.plans.scheme import Scheme
from seqplan.plans.scheme_limits import refusal

SMALL = Path(__file__).parents[3] / "examples" / "data" / "llama-small-cpu.json"
RANKS, STEPS = 2, 40
ENDED_S = 60.0


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory, lengths: Path) -> Path:
    """Short steps on two ranks, made by the command line."""
    return _planned(tmp_path_factory.mktemp("small"), SMALL, lengths, tokens=6000, steps=STEPS)


def _planned(folder: Path, profile: Path, lengths: Path, *, tokens: int, steps: int) -> Path:
    proposal, plans = folder / "proposal.json", folder / "plans.jsonl"
    succeeded(
        call(
            *("propose", "--profile", profile, "--gpus", RANKS, "--lengths", lengths),
            *("--max-len", 3000, "--tokens", tokens, "-o", proposal),
        )
    )
    succeeded(
        call(
            *("plan", "--proposal", proposal, "--lengths", lengths),
            *("--steps", steps, "--seed", 2, "-o", plans),
        )
    )
    return plans


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands of a test have their temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def children(temporary: Path) -> list[int]:
    """Processes whose arguments name this folder: those that a command has started."""
    numbers = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if any(word.startswith(f"--parameters={temporary}/") for word in words):
            numbers.append(int(folder.name))
    return numbers


def have_children(temporary: Path, count: int) -> bool:
    """Whether there are so many, within a while: /proc may be read while a process starts."""
    deadline = time.monotonic() + ENDED_S
    while len(children(temporary)) != count and time.monotonic() < deadline:
        time.sleep(0.1)
    return len(children(temporary)) == count


def no_child_left(temporary: Path) -> bool:
    return have_children(temporary, 0)


# What is executed


def test_ranks_agree_with_one_process(plans: Path, temporary: Path) -> None:
    told = process(
        *("train-check", "--plans", plans, "--ranks", RANKS, "--steps", 4),
        *("--dtype", "float64", "--json"),
        timeout=120,
    )
    report = json.loads(succeeded(told))
    assert report["agrees"] is True
    assert report["model"]["heads"] >= 2
    assert report["parameter_difference"] <= 1e-10
    made = list(read_plans(plans))[:4]
    assert [step["step"] for step in report["steps"]] == [0, 1, 2, 3]
    assert len({step["strategy"] for step in report["steps"]}) > 1  # the strategy changes
    for step, plan in zip(report["steps"], made, strict=True):
        assert step["tokens"] == plan.tokens
        assert step["predicted_ms"] == plan.predicted_ms
        assert step["loss"] == pytest.approx(step["reference_loss"], rel=1e-10)
        assert step["tokens_per_s"] == pytest.approx(1000 * plan.tokens / step["measured_ms"])
    losses = [step["loss"] for step in report["steps"]]
    assert losses[0] == pytest.approx(math.log(256), rel=0.02)  # an untrained model's
    assert len(set(losses)) == 4
    assert no_child_left(temporary)


def test_rounds_agree_too(lengths: Path, tmp_path: Path) -> None:
    """Plans for ZeRO-3, in lockstep rounds of groups that differ from round to round."""
    profile = tmp_path / "rounds.json"
    profile.write_text(json.dumps({**json.loads(SMALL.read_text("utf-8")), "zero_stage": 3}))
    made = _planned(tmp_path, profile, lengths, tokens=9000, steps=2)
    assert any(len({each.round for each in plan.pipelines}) > 1 for plan in read_plans(made))
    told = process("train-check", "--plans", made, "--ranks", RANKS, "--json", timeout=120)
    report = json.loads(succeeded(told))
    assert report["agrees"] is True
    assert len(report["steps"]) == 2  # all that there are


def test_runs_that_differ(plans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any tolerance float32 cannot agree: the verdict and the exit code must say so."""
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
    done = call("train-check", "--plans", plans, "--ranks", RANKS, "--steps", 1, "--data", data)
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[1].startswith(f"tokens of {data}, ids modulo 256;")
    assert lines[-1].startswith("THE RUNS DIFFER: limits are 0 on losses")
    row = lines[5].split()
    assert row[0] == "0"
    assert float(row[2]) == pytest.approx(float(row[3]), rel=1e-5)


def test_rows_come_as_steps_are_done(plans: Path) -> None:
    """The first rows are there while the ranks still run, and before the last."""
    line = ("train-check", "--plans", str(plans), "--ranks", str(RANKS), "--steps", str(STEPS))
    with subprocess.Popen(
        [*COMMAND, *line], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as command:
        assert command.stdout is not None
        table = [command.stdout.readline() for _ in range(6)]
        assert table[3].split()[:2] == ["step", "tokens"]
        assert table[5].split()[0] == "0"
        # What is stopped now would have taken the other steps, and then have said its verdict.
        command.send_signal(signal.SIGINT)
        rest = command.stdout.read().splitlines()
        assert command.wait(ENDED_S) == 130
    assert len(rest) < STEPS - 1
    assert [row.split()[0] for row in rest] == [f"{at}" for at in range(1, len(rest) + 1)]


def test_fewer_plans_than_asked_for(plans: Path, tmp_path: Path) -> None:
    """Said before anything starts; what is beyond the steps asked for does not matter."""
    two = rewritten(plans, tmp_path, *list(read_plans(plans))[:2])
    done = call("train-check", "--plans", two, "--ranks", RANKS, "--steps", 99)
    assert done.code == 0
    assert f"seqplan: {two}: has 2 plans, not 99: all are run" in done.err.splitlines()
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[5:7]] == ["0", "1"]
    assert "measured: the slowest rank's whole step" in done.out
    assert "which the ranks share with the one process" in done.out
    assert lines[-1].startswith("the runs agree")
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text(two.read_text() + '{"damaged')
    report = json.loads(
        succeeded(call("train-check", "--plans", damaged, "--ranks", RANKS, "--steps", 2, "--json"))
    )
    assert len(report["steps"]) == 2
    # A damaged one among them is told of before any rank is started.
    said = complaint(call("train-check", "--plans", damaged, "--ranks", RANKS, "--steps", 3))
    assert said.startswith(f"{damaged}:3: ")


def test_tensor_and_pipeline_parallel_plans_agree_too(tmp_path: Path) -> None:
    """One step each of two ranks of tensor, pipeline, Ulysses and ring parallelism."""
    path = tmp_path / "plans.jsonl"
    schemes = [Scheme(tp=2), Scheme(pp=2), Scheme(ulysses=2), Scheme(ring=2)]
    path.write_text(
        "".join(
            f"{to_json(one_pipeline_plan(scheme, [70, 9, 31], step=step, packed=False))}\n"
            for step, scheme in enumerate(schemes)
        )
    )
    arguments = ("train-check", "--plans", path, "--ranks", 2, "--dtype", "float64", "--json")
    document = json.loads(succeeded(process(*arguments, timeout=120)))
    assert document["agrees"] is True
    assert [step["strategy"] for step in document["steps"]] == ["1×tp2", "1×pp2", "1×u2", "1×r2"]
    assert document["parameter_difference"] <= 1e-12


def test_data_that_does_not_hold_the_plan(plans: Path, tmp_path: Path, temporary: Path) -> None:
    data = tmp_path / "tokens.jsonl"
    data.write_text("[1, 2, 3]\n")
    done = process("train-check", "--plans", plans, "--ranks", RANKS, "--data", data, timeout=120)
    assert done.code == 2
    said = done.err.splitlines()[-1]
    assert "of step 0: the data has no such id, it has 1 samples" in said
    assert "Traceback" not in done.err
    assert no_child_left(temporary)


# What ends early


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_nothing_is_left_of_a_command_that_is_stopped(
    plans: Path, temporary: Path, number: signal.Signals, code: int
) -> None:
    with subprocess.Popen(
        [*COMMAND, "train-check", "--plans", str(plans), "--ranks", str(RANKS)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stderr is not None
        assert command.stderr.readline().startswith("starting ranks")
        assert have_children(temporary, RANKS + 1)
        command.send_signal(number)
        rest = command.stderr.read()
        assert command.wait(ENDED_S) == code
    assert "Traceback" not in rest
    assert no_child_left(temporary)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
def test_a_rank_that_dies(plans: Path, temporary: Path) -> None:
    with subprocess.Popen(
        [
            *(*COMMAND, "train-check", "--plans", str(plans), "--ranks", str(RANKS)),
            *("--steps", str(STEPS)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stderr is not None
        assert command.stderr.readline().startswith("starting ranks")
        os.kill(rank_process(temporary, 1), signal.SIGKILL)
        out, err = command.communicate(timeout=ENDED_S)
    assert command.returncode == 1
    assert out == ""
    assert err == "seqplan: rank 1 was killed by SIGKILL; is there enough memory?\n"
    assert no_child_left(temporary)


def rank_process(temporary: Path, rank: int) -> int:
    """The process with this rank in its environment."""
    for number in children(temporary):
        environment = Path(f"/proc/{number}/environ").read_text().split("\0")
        if f"RANK={rank}" in environment:
            return number
    raise AssertionError(f"no rank {rank}")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
def test_the_one_process_dies(plans: Path, temporary: Path) -> None:
    line = ("train-check", "--plans", str(plans), "--ranks", str(RANKS), "--steps", str(STEPS))
    with subprocess.Popen(
        [*COMMAND, *line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        assert command.stderr is not None
        assert command.stderr.readline().startswith("starting ranks")
        assert have_children(temporary, RANKS + 1)
        (number,) = (
            number
            for number in children(temporary)
            if "--reference" in Path(f"/proc/{number}/cmdline").read_text().split("\0")
        )
        os.kill(number, signal.SIGKILL)
        _, err = command.communicate(timeout=ENDED_S)
    assert command.returncode == 1
    said = err.splitlines()[-1]
    assert said == "seqplan: the one process was killed by SIGKILL; is there enough memory?"
    assert no_child_left(temporary)


def test_a_process_that_ends_without_a_word() -> None:
    with started() as processes:
        processes.start("seqplan.plans.no_such_module", [], {})
        with pytest.raises(RuntimeError, match=r"rank 0 ended with code 1: .*No module named"):
            list(processes.messages([0]))


def test_messages_until_all_are_done(tmp_path: Path) -> None:
    module = tmp_path / "said.py"
    module.write_text(
        "import sys\n"
        "name = sys.stdin.readline().strip()\n"
        'print(\'{"step": "%s"}\' % name, flush=True)\n'
        "print('{\"done\": true}', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with started() as processes:
        for number in range(2):
            processes.start("said", [], {"PYTHONPATH": str(tmp_path)})
            processes.tell(number, f"process {number}")
        told = list(processes.messages([0, 1]))
        said = sorted((number, message["step"]) for number, message in told if "step" in message)
        assert said == [(0, "process 0"), (1, "process 1")]
        assert sorted(number for number, message in told if "done" in message) == [0, 1]
        folder = Path(processes.folder)
        assert folder.is_dir()
    assert not folder.exists()


# What is refused before anything starts


def rewritten(plans: Path, folder: Path, *changed: Plan) -> Path:
    path = folder / "changed.jsonl"
    path.write_text("".join(f"{to_json(plan)}\n" for plan in changed))
    return path


def test_plans_for_another_number_of_ranks(plans: Path) -> None:
    said = complaint(call("train-check", "--plans", plans, "--ranks", 4))
    assert said == (f"{plans}: is planned for 2 ranks, not 4; give --ranks 2, or plan for 4 GPUs")


def test_other_bad_input(plans: Path, tmp_path: Path) -> None:
    made = list(read_plans(plans))
    gap = rewritten(plans, tmp_path, made[0], made[1], made[3])
    said = complaint(call("train-check", "--plans", gap, "--ranks", 2))
    assert "step 3 follows step 1; ranks run steps without a gap, at most 2 here" in said
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert "no plans" in complaint(call("train-check", "--plans", empty, "--ranks", 2))
    missing = tmp_path / "missing.jsonl"
    said = complaint(call("train-check", "--plans", missing, "--ranks", 2))
    assert said == f"{missing}: No such file or directory"
    said = complaint(call("train-check", "--plans", tmp_path, "--ranks", 2))
    assert said == f"{tmp_path}: every rank reads the plans for itself: give a file"
    said = complaint(
        call("train-check", "--plans", plans, "--ranks", 2, "--data", tmp_path / "none.idx")
    )
    assert said == f"{tmp_path / 'none.idx'}: No such file or directory"
    unsound = rewritten(plans, tmp_path, replace(made[0], tokens=made[0].tokens + 1))
    said = complaint(call("train-check", "--plans", unsound, "--ranks", 2))
    assert "step 0 breaks a rule: tokens: " in said


def test_large_steps_are_warned_of(plans: Path) -> None:
    from seqplan.api.cli.train_check import LARGE_STEP, warnings

    plan = from_json(plans.read_text().splitlines()[0])
    assert warnings([plan]) == []
    assert "may take minutes each" in warnings([replace(plan, tokens=LARGE_STEP)])[0]
    assert "starting them takes long" in warnings([replace(plan, world_size=10_000)])[0]


# The verdict


def checked(plan: Plan, loss: float, norm: float, parameter: float) -> Check:
    step = CheckedStep(plan, loss, 5.0, norm, 2.0, 100.0)
    good = CheckedStep(plan, 5.0, 5.0, 2.0, 2.0, 100.0)
    return Check("float32", checked_sizes([plan]), (good, step), "head.weight", parameter)


@pytest.mark.parametrize(
    ("loss", "norm", "parameter", "agrees"),
    [
        (5.0, 2.0, 0.0, True),
        (5.0 * (1 + 9e-6), 2.0, 0.0, True),
        (5.0 * (1 - 1.1e-5), 2.0, 0.0, False),
        (5.0, 2.0 * (1 + 1.1e-4), 0.0, False),
        (5.0, 2.0, 1.1e-4, False),
        (math.nan, 2.0, 0.0, False),
        (5.0, math.nan, 0.0, False),
        (5.0, 2.0, math.nan, False),
        (math.inf, 2.0, 0.0, False),
    ],
)
def test_the_verdict(plans: Path, loss: float, norm: float, parameter: float, agrees: bool) -> None:
    plan = next(read_plans(plans))
    assert checked(plan, loss, norm, parameter).agrees is agrees


def test_relative_differences() -> None:
    assert relative(0.0, 0.0) == 0.0
    assert relative(1.0, 0.0) == math.inf
    assert relative(1.5, -1.0) == 2.5
    assert math.isnan(relative(math.nan, 1.0))


@pytest.mark.parametrize("ulysses", [1, 2, 3, 5, 6, 7, 8, 12, 64])
def test_a_model_has_heads_for_every_ulysses_rank(plans: Path, ulysses: int) -> None:
    plan = next(read_plans(plans))
    pipeline = replace(plan.pipelines[0], scheme=Scheme(ulysses=ulysses))
    sizes = checked_sizes([plan, replace(plan, pipelines=(pipeline,))])
    assert sizes.heads >= ulysses
    assert sizes.hidden % (2 * sizes.heads) == 0


@pytest.mark.parametrize(
    "schemes",
    [
        [Scheme(tp=4, pp=3), Scheme(tp=3, ulysses=2), Scheme(tp=2, ulysses=8)],
        [Scheme(tp=16), Scheme(tp=6, pp=5)],
        [Scheme(tp=8, ulysses=4), Scheme(tp=5)],
    ],
)
def test_a_model_that_all_schemes_can_run(plans: Path, schemes: list[Scheme]) -> None:
    plan = next(read_plans(plans))
    pipelines = tuple(replace(plan.pipelines[0], scheme=scheme) for scheme in schemes)
    sizes = checked_sizes([replace(plan, pipelines=pipelines)])
    assert sizes.hidden % (2 * sizes.heads) == 0
    assert sizes.heads % sizes.kv_heads == 0
    for scheme in schemes:
        reason = refusal(
            scheme,
            layers=sizes.layers,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            ffn=sizes.ffn,
            vocab=sizes.vocab,
        )
        assert reason is None


def test_importing_it_leaves_torch_alone() -> None:
    code = "import sys, seqplan.api.cli.train_check; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
