"""Kill a rank of the example trainer, start it again: the same losses, bit for bit."""

import fcntl
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from plan_builder import write_file
from random_plans import random_staged_plan
from trainers import start_trainers

from seqplan import Planner, construct_plan

SMALL = Path(__file__).parents[3] / "examples" / "data" / "llama-small-cpu.json"
RANKS, STEPS = 2, 12
PATIENCE_S = 60
SIZES = {"layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 256}


@dataclass(frozen=True)
class Run:
    """Output of a job's ranks: (step, loss) as rank 0 prints them, and all else by rank."""

    losses: list[tuple[int, float]]
    remarks: list[list[str]]


def trained(
    plans: Path, folder: Path, kill: tuple[int, int] | None = None, world_size: int = RANKS
) -> Run:
    """Train until the end or until ``kill`` = (rank, after step)."""
    arguments = ["--plans", plans, "--checkpoint-every", "2", "--checkpoints", folder]
    ranks = start_trainers(world_size, [*arguments, "--export", folder.with_suffix(".pt")])
    losses = []
    remarks: list[list[str]] = [[] for _ in ranks]
    try:
        for line in ranks[0].output:
            if not line.startswith("{"):
                remarks[0].append(line)
                continue
            record = json.loads(line)
            losses.append((record["step"], record["loss"]))
            if kill is not None and record["step"] == kill[1]:
                ranks[kill[0]].process.kill()
        for rank in ranks:
            rank.process.join(PATIENCE_S)
        codes = [rank.process.exitcode for rank in ranks]
        assert all(codes) if kill is not None else not any(codes), codes
        remarks[1:] = [rank.output.readlines() for rank in ranks[1:]]
    finally:
        for rank in ranks:
            rank.end()
    return Run(losses, remarks)


def assert_one_sentence(remarks: list[str]) -> None:
    """The message of a rank that has lost the other: no trace of a backend's stack."""
    # gloo of some releases writes there that it is connected
    (line,) = (remark for remark in remarks if "is connected to" not in remark)
    assert re.match(r"rank [01]: (step \d+: )?a rank is lost: the connection closed while ", line)


def test_any_rank_may_be_killed_at_any_step(tmp_path: Path) -> None:
    """Under strategies of any kind, others at each step, also after the restart."""
    rng = np.random.default_rng(1)
    step_plans = [
        random_staged_plan(rng, RANKS, SIZES, step=step, longest=80) for step in range(STEPS)
    ]
    schemes = {pipeline.scheme for plan in step_plans for pipeline in plan.pipelines}
    assert any(scheme.tp > 1 for scheme in schemes)
    assert any(scheme.pp > 1 for scheme in schemes)
    plans = write_file(tmp_path / "plans.jsonl", step_plans)
    straight = dict(trained(plans, tmp_path / "straight").losses)
    assert sorted(straight) == list(range(STEPS))
    killed = tmp_path / "killed"
    first = trained(plans, killed, kill=(1, 4))
    assert_one_sentence(first.remarks[0])
    second = trained(plans, killed, kill=(0, 7))
    assert_one_sentence(second.remarks[1])
    again = [*first.losses, *second.losses, *trained(plans, killed).losses]
    assert {step for step, _ in again} == set(straight)
    assert again[-1][0] == STEPS - 1
    for step, loss in again:
        assert loss == straight[step]
    exported = [torch.load(tmp_path / f"{name}.pt") for name in ("straight", "killed")]
    assert exported[0].keys() == exported[1].keys()
    assert all(torch.equal(exported[0][name], exported[1][name]) for name in exported[0])


def test_errors_of_plans_and_checkpoints_are_one_line_a_rank(tmp_path: Path) -> None:
    plans = write_file(tmp_path / "plans.jsonl", [construct_plan([9, 7], {"tp1": [[[0]], [[1]]]})])
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for rank, line in enumerate(failed(plans, folder)):
            assert line.startswith(f"rank {rank}: {folder / 'step-00000001'}: cannot be written: ")
            assert "another job writes into this folder" in line
    for rank, line in enumerate(failed(tmp_path / "none.jsonl", folder)):
        assert line.startswith(f"rank {rank}: ")
        assert "none.jsonl" in line


def failed(plans: Path, folder: Path) -> list[str]:
    """Train until the ranks fail; the one line of each on stderr."""
    arguments = ["--plans", plans, "--checkpoint-every", "1", "--checkpoints", folder]
    ranks = start_trainers(RANKS, arguments)
    try:
        outputs = [rank.output.readlines() for rank in ranks]
        for rank in ranks:
            rank.process.join(PATIENCE_S)
        assert [rank.process.exitcode for rank in ranks] == [1] * RANKS, outputs
    finally:
        for rank in ranks:
            rank.end()
    lines = []
    for output in outputs:
        (line,) = (
            line for line in output if not line.startswith("{") and "is connected to" not in line
        )
        lines.append(line)
    return lines


def test_job_goes_on_with_the_ranks_that_are_left(tmp_path: Path) -> None:
    """Planned for four ranks without rank 1: three processes have the losses of four."""
    lengths = [[1_040, 520, *[120 + 8 * step] * 4, 28] for step in range(4)]
    plans, left = tmp_path / "plans.jsonl", tmp_path / "left.jsonl"
    for path, slowdown in ((plans, None), (left, [1.0, None, 1.0, 1.0])):
        planner = Planner.from_profile(
            str(SMALL), gpus=4, max_len=4_096, layout="tp1", execution="static", slowdown=slowdown
        )
        made = [
            planner.plan(of_step, [10 * step + i for i in range(len(of_step))], step=step)
            for step, of_step in enumerate(lengths)
        ]
        write_file(path, made)
    assert any(len(pipeline.ranks) > 1 for plan in made for pipeline in plan.pipelines)
    straight = dict(trained(plans, tmp_path / "straight", world_size=4).losses)
    killed = tmp_path / "killed"
    first = trained(plans, killed, kill=(1, 2), world_size=4)
    again = trained(left, killed, world_size=3).losses
    assert [step for step, _ in again] == [2, 3]
    for step, loss in [*first.losses, *again]:
        assert abs(loss / straight[step] - 1) < 1e-6
