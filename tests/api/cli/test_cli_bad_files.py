"""Bad proposals, plan files and outputs: one line, the right exit code, nothing left behind."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call, complaint, fresh_process, nothing_left, succeeded
from plan_builder import write_file
from planned_files import PlannedFiles, propose

from seqplan import Scheme, read_plans, to_json
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.plans.format.canonical import canonical_json, digest_of

PROFILE = ("--profile", "llama-7b-a800-80gb", "--gpus", 4)
BEFORE = '{"pipelines": [], "sequences": [], "predicted_ms": 1}\n'
"""Fields of a plan, by which a file of plans is known."""

# Proposals


def changed_gpus(text: str) -> str:
    assert '"gpus": 4,' in text
    return text.replace('"gpus": 4,', '"gpus": 8,', 1)


def resealed(change: Callable[[Any], object]) -> Callable[[str], str]:
    """Change the document and update its digest."""

    def text_of(text: str) -> str:
        document = json.loads(text)
        del document["digest"]
        change(document)
        return json.dumps({**document, "digest": digest_of(canonical_json(document))})

    return text_of


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            resealed(lambda d: d["candidates"][0].update(runs="x")),
            'candidates[0].runs: must be a number from 0 to 1: "x"',
        ),
        (resealed(lambda d: d.update(seed=1.5)), "seed: must be an integer ≥ 0: 1.5"),
        (resealed(lambda d: d.update(zeal=1)), "zeal: is not a field of a proposal"),
        (resealed(lambda d: d.update(candidates=[])), "no candidates"),
        (changed_gpus, "the digest does not match; the file was changed"),
        (lambda text: text[: len(text) // 2], "not a whole JSON document"),
        (lambda text: "", "not a whole JSON document"),
        (lambda text: "[]", "not a proposal"),
        (lambda text: '{"schema": 1}', "schema: is 1, this version reads 2. Propose again"),
        (lambda text: "[" * 100_000, "not a proposal (too deeply nested (maximum recursion depth"),
        (lambda text: '{"schema": 2, "name": "\\ud800"}', "half of a surrogate pair is not text"),
    ],
)
def test_a_changed_proposal(
    change: Callable[[str], str], message: str, dense: PlannedFiles, tmp_path: Path, output: Path
) -> None:
    path = tmp_path / "proposal.json"
    path.write_text(change(dense.proposal.read_text()))
    for outcome in (
        call("plan", "--proposal", path, dense.lengths, "-o", output),
        call("check", "plans", dense.plans, "--proposal", path),
    ):
        line = complaint(outcome)
        assert line.startswith(f"{path}: ")
        assert message in line
    nothing_left(output)


def test_other_files_in_place_of_a_proposal(
    dense: PlannedFiles, tmp_path: Path, output: Path
) -> None:
    for path, message in (
        (dense.lengths, "is not text: byte 1. Name another file"),
        (dense.plans, "not a whole JSON document"),
        (tmp_path / "none.json", "cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
    ):
        line = complaint(call("plan", "--proposal", path, dense.lengths, "-o", output))
        assert line.startswith(f"{path}: {message}")
    nothing_left(output)


def test_documents_in_place_of_others(dense: PlannedFiles, tmp_path: Path) -> None:
    def one_line(path: Path) -> Path:
        line = tmp_path / f"{path.stem}.json"
        text = path.read_text()
        line.write_text(
            text.splitlines()[0] if path == dense.plans else json.dumps(json.loads(text))
        )
        return line

    chat = tmp_path / "chat.json"
    chat.write_text('{"messages": []}\n')
    plan, proposal = map(one_line, (dense.plans, dense.proposal))
    profile = tmp_path / "profile.json"
    profile.write_text(canonical_json(load_shipped(dense.profile).document))
    output = tmp_path / "out.jsonl"
    plans = ("check", "plans"), ":1: ", "a plan"
    proposals = ("plan", dense.lengths, "-o", output, "--proposal"), ": ", "a proposal"
    profiles = ("profile", "show"), ": ", "a profile"
    for (command, place, wanted), path, given in (
        (plans, proposal, "a proposal"),
        (plans, chat, None),
        (proposals, plan, "a plan"),
        (proposals, profile, "a profile"),
        (proposals, chat, None),
        (profiles, plan, "a plan"),
        (profiles, proposal, "a proposal"),
        (profiles, chat, None),
    ):
        other = f"is {given}, not {wanted}" if given else f"is not {wanted}"
        line = complaint(call(*command, path))
        assert line == f"{path}{place}{other}. Name another file"
    line = complaint(call("lengths", dense.plans))
    assert line.endswith("line 1: is a plan. Name the lengths that it is made from")
    profile.write_text(json.dumps(load_shipped(dense.profile).document, indent=1))
    for path, given in ((dense.proposal, "a proposal"), (profile, "a profile")):
        line = complaint(call("lengths", path))
        assert line == f"{path}: is {given}. Name the lengths that it is made from"
    node = ("estimate", "--seq-len", 4096, "--model", "llama-7b", "--hardware", "a800-80gb")
    for option in ("--model", "--hardware"):
        line = complaint(call(*node, option, profile))
        assert line == f"{profile}: is a profile. Name another file"


# Plans


def damaged(plans: Path, copy_to: Path, change: Callable[[str], str]) -> Path:
    copy_to.write_text(change(plans.read_text()))
    return copy_to


def test_a_plan_file_cut_in_a_line(dense: PlannedFiles, tmp_path: Path) -> None:
    whole = sum(map(len, dense.plans.read_text().splitlines(keepends=True)[:2]))
    path = damaged(dense.plans, tmp_path / "cut.jsonl", lambda text: text[: whole + 100])
    for outcome in (call("check", "plans", path), call("explain", path, "--step", 3)):
        assert complaint(outcome).startswith(f"{path}:3: ")
    # What stands before the cut can still be read.
    assert call("explain", path, "--step", 1).code == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", "no plans"),
        (lambda text: "\n", ":1: "),
        (lambda text: "plans\n", ":1: "),
        (lambda text: text.replace('"tokens":', '"tokens":1', 1), "digest"),
        (lambda text: text.replace('"step":0', '"step":9', 1), "digest"),
        (lambda text: text + text, "does not follow step"),
        (lambda text: text.replace('"gap"', '"gab"', 1), ":1: gap: is missing"),
        (lambda text: text.replace('"schema":2', '"schema":1', 1), "reads 2. Plan the steps again"),
    ],
)
def test_a_damaged_plan_file(
    change: Callable[[str], str], message: str, dense: PlannedFiles, tmp_path: Path
) -> None:
    path = damaged(dense.plans, tmp_path / "plans.jsonl", change)
    line = complaint(call("check", "plans", path))
    assert line.startswith(f"{path}:")
    assert message in line


def test_a_plan_that_breaks_a_rule_is_a_failure(dense: PlannedFiles, tmp_path: Path) -> None:
    """A sound digest over unsound content: what a broken planner would write."""
    first, *rest = read_plans(dense.plans)
    hasty = replace(first.pipelines[0], predicted_ms=0.5)
    first = replace(first, tokens=first.tokens + 1, pipelines=(hasty, *first.pipelines[1:]))
    path = write_file(tmp_path / "plans.jsonl", [first, *rest])
    outcome = call("check", "plans", path, "--profile", dense.profile)
    assert (outcome.code, outcome.err) == (1, "")
    assert "step 0: tokens: " in outcome.out
    assert "simulation takes" in outcome.out
    report = json.loads(call("check", "plans", path, "--json").out)
    assert {fault["step"] for fault in report["broken"]} == {0}


def test_any_number_of_stages_is_checked(dense: PlannedFiles, tmp_path: Path) -> None:
    plan = next(read_plans(dense.plans))
    endless = replace(plan.pipelines[0], scheme=Scheme(pp=2**63 - 1))
    path = tmp_path / "plans.jsonl"
    path.write_text(to_json(replace(plan, pipelines=(endless, *plan.pipelines[1:]))) + "\n")
    outcome = call("check", "plans", path)
    assert (outcome.code, outcome.err) == (1, "")
    assert f"but pp{2**63 - 1} runs on {2**63 - 1}" in outcome.out


def test_no_unsound_plan_is_exported(dense: PlannedFiles, tmp_path: Path) -> None:
    plan = next(read_plans(dense.plans))
    first = plan.pipelines[0]
    outside = replace(first.micro_batches[0], sequences=(10**6,))
    wrong = replace(first, micro_batches=(outside, *first.micro_batches[1:]))
    path, output = tmp_path / "plans.jsonl", tmp_path / "ids.jsonl"
    path.write_text(to_json(replace(plan, pipelines=(wrong, *plan.pipelines[1:]))) + "\n")
    message = complaint(call("export", path, "-o", output))
    assert message.startswith(f"{path}: step 0: breaks a rule of the format: ")
    assert not output.exists()


def test_a_plan_against_another_profile_or_proposal(
    dense: PlannedFiles, lockstep: PlannedFiles
) -> None:
    message = complaint(call("check", "plans", dense.plans, "--profile", lockstep.profile))
    assert message.startswith(f"{dense.plans}: step 0 was planned from another profile than gpt-7b")
    message = complaint(call("check", "plans", dense.plans, "--proposal", lockstep.proposal))
    assert message == f"{dense.plans}: step 0 was planned from another proposal. Give that one"


def test_a_missing_step_rank_or_file(dense: PlannedFiles, tmp_path: Path) -> None:
    assert complaint(call("explain", dense.plans, "--step", 4)) == (
        f"{dense.plans}: no step 4; it has steps 0 to 3"
    )
    assert complaint(call("explain", dense.plans, "--step", 0, "--rank", 4)) == (
        f"{dense.plans}: rank 4 is not among the step's 4 ranks. Give one of 0 to 3"
    )
    none = tmp_path / "none.jsonl"
    for outcome in (call("check", "plans", none), call("explain", none, "--step", 0)):
        assert complaint(outcome) == f"{none}: No such file or directory. Check the path"
    assert complaint(call("check", "plans", tmp_path)) == (
        f"{tmp_path}: is a folder. Name a file in it"
    )
    for outcome in (
        call("check", "plans", dense.lengths),
        call("explain", dense.lengths, "--step", 0),
    ):
        assert complaint(outcome).startswith(f"{dense.lengths}:1: not UTF-8")


# Outputs


def test_an_unwritable_output_fails_before_the_work(dense: PlannedFiles, tmp_path: Path) -> None:
    missing = tmp_path / "none" / "result.json"
    for outcome in (
        propose(dense.lengths, missing),
        call("plan", "--proposal", dense.proposal, dense.lengths, "-o", missing),
    ):
        assert (
            complaint(outcome)
            == f"{missing}: the folder {missing.parent} does not exist. Create it"
        )
    for outcome in (
        propose(dense.lengths, tmp_path),
        call("plan", "--proposal", dense.proposal, dense.lengths, "-o", tmp_path),
    ):
        assert complaint(outcome) == f"{tmp_path}: is a folder; name a file in it"
    assert "there is no folder" in complaint(
        call("lengths", dense.lengths, "-o", missing.with_suffix(".npy"))
    )
    assert os.listdir(tmp_path) == []


def test_files_that_have_no_plans_are_not_overwritten(dense: PlannedFiles, tmp_path: Path) -> None:
    file, folder, costs = tmp_path / "x.npy", tmp_path / "run", tmp_path / "costs"
    folder.mkdir()
    costs.mkdir()
    (costs / "profile.json").write_text("{}")
    for path in (file, folder / "lengths.npy"):
        np.save(path, np.array([5, 7]))
    for options, path in (
        (("--proposal", dense.proposal, "-o", file), f"{file}: exists, and has no plans. Name"),
        ((*PROFILE, "-o", file), f"{file}: exists, and has no plans. Name another file, or remove"),
        ((*PROFILE, "-o", folder), f"{folder / 'lengths.npy'}: exists, and is of no earlier run."),
        ((*PROFILE, "-o", costs), f"{costs / 'profile.json'}: exists, and is of no earlier run."),
    ):
        assert complaint(call("plan", dense.lengths, *options)).startswith(path)
    assert np.array_equal(np.load(file), [5, 7])
    assert os.listdir(folder) == ["lengths.npy"]
    file.write_text(BEFORE)
    succeeded(call("plan", dense.lengths, "--proposal", dense.proposal, "--steps", 1, "-o", file))


def test_a_failed_command_leaves_the_file_that_was_there(
    dense: PlannedFiles, tmp_path: Path, output: Path
) -> None:
    output.write_text(BEFORE)
    zero = tmp_path / "a.txt"
    zero.write_text("0\n")
    long = tmp_path / "batches.jsonl"
    long.write_text('{"lengths":[7]}\n{"lengths":[5000]}\n')
    complaint(propose(zero, output))
    complaint(call("plan", "--proposal", dense.proposal, zero, "-o", output))
    complaint(call("plan", "--proposal", dense.proposal, long, "-o", output))
    assert output.read_text() == BEFORE
    assert os.listdir(output.parent) == [output.name]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_device(dense: PlannedFiles) -> None:
    lengths = (dense.lengths, "--steps", 1)
    outcome = call("plan", "--proposal", dense.proposal, *lengths, "-o", "/dev/full")
    assert (outcome.code, outcome.out) == (2, "")
    problem = "seqplan: /dev/full: No space left on device. Free space or name another place"
    assert outcome.err.splitlines()[-1] == problem
    outcome = call("plan", "--proposal", dense.proposal, *lengths, "-o", "/dev/null")
    assert outcome.code == 0


@pytest.mark.skipif(os.name != "posix", reason="limits of processes")
@pytest.mark.parametrize("before", ["", BEFORE])
def test_a_file_that_may_not_grow(dense: PlannedFiles, output: Path, before: str) -> None:
    """The device rejects in the middle of writing; what a full disk does."""
    import resource

    if before:
        output.write_text(before)
    completed = fresh_process(
        *("plan", "--proposal", dense.proposal, dense.lengths, "--steps", 40),
        *("-o", output),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)),
    )
    assert (completed.code, completed.out) == (2, "")
    assert completed.err.splitlines()[-1] == f"seqplan: {output}: File too large"
    assert "Traceback" not in completed.err
    assert os.listdir(output.parent) == ([output.name] if before else [])
    if before:
        assert output.read_text() == before


def test_a_folder_that_may_not_be_written(dense: PlannedFiles, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(0o500)
    try:
        if os.access(folder, os.W_OK):
            # The superuser may write anywhere: the folder of a file system of the kernel then.
            folder = Path("/proc")
        outcome = call(
            *("plan", "--proposal", dense.proposal, dense.lengths, "--steps", 1),
            *("-o", folder / "plans.jsonl"),
        )
        assert outcome.code == 2
        assert str(folder / "plans.jsonl") in outcome.err.splitlines()[-1]
    finally:
        (tmp_path / "closed").chmod(0o700)
        shutil.rmtree(tmp_path / "closed")
