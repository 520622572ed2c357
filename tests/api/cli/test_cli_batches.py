"""Batches of the caller: every malformed line is named with its number, and nothing is written."""

import json
from pathlib import Path

import pytest
from command_line import call, complaint, nothing_left, succeeded
from planned_files import MAX_LEN, PlannedFiles

from seqplan import read_plans

GOOD = b'{"step":4,"ids":[1,2],"lengths":[10,20]}\n'

LINES: dict[str, tuple[bytes, str]] = {
    "not json": (b"lengths 5 6\n", "is not a whole JSON object (Expecting value"),
    "cut": (b'{"step":5,"lengths":[1', "is not a whole JSON object ("),
    "two on a line": (
        b'{"lengths":[1]} {"lengths":[2]}\n',
        "is not a whole JSON object (Extra data",
    ),
    "not an object": (b"[5,6]\n", "is not an object with lengths. Repair the line"),
    "not text": (b'{"lengths":[\xff]}\n', "is not UTF-8 (invalid start byte). Convert the file"),
    "nested": (b"[" * 100_000 + b"\n", "is not a whole JSON object (too deeply nested"),
    "no lengths": (b'{"step":5,"ids":[1]}\n', "lengths: is missing"),
    "lengths null": (b'{"lengths":null}\n', "lengths: must be a list of integers: null"),
    "empty": (b'{"step":5,"ids":[],"lengths":[]}\n', "step 5: the batch has no sequences"),
    "zero": (b'{"lengths":[5,0]}\n', "lengths[1]: must be an integer ≥ 1: 0"),
    "negative": (b'{"lengths":[-5]}\n', "lengths[0]: must be an integer ≥ 1: -5"),
    "fraction": (b'{"lengths":[5.0]}\n', "lengths[0]: must be an integer ≥ 1: 5.0"),
    "nan": (b'{"lengths":[NaN]}\n', "lengths[0]: must be an integer ≥ 1: NaN"),
    "text": (b'{"lengths":["5"]}\n', 'lengths[0]: must be an integer ≥ 1: "5"'),
    "bool": (b'{"lengths":[true]}\n', "lengths[0]: must be an integer ≥ 1: true"),
    "huge length": (b'{"lengths":[9223372036854775808]}\n', "lengths[0]: must be an integer ≥ 1"),
    "too long": (
        b'{"ids":[7,8],"lengths":[9,4097]}\n',
        f"sequence 8 has 4097 tokens, above the proposal's --max-len {MAX_LEN}; truncate it",
    ),
    "ids fewer": (b'{"ids":[1],"lengths":[5,6]}\n', "step 5: 1 ids but 2 lengths"),
    "ids negative": (b'{"ids":[-1],"lengths":[5]}\n', "ids[0]: must be an integer ≥ 0: -1"),
    "ids text": (b'{"ids":"1","lengths":[5]}\n', "ids: must be a list of integers"),
    "ids huge": (b'{"ids":[9223372036854775808],"lengths":[5]}\n', "ids[0]: must be an integer"),
    "step again": (b'{"step":4,"lengths":[5]}\n', "step: must be an integer above 4: 4"),
    "step before": (b'{"step":0,"lengths":[5]}\n', "step: must be an integer above 4: 0"),
    "step text": (b'{"step":"5","lengths":[5]}\n', 'step: must be an integer above 4: "5"'),
    "step huge": (b'{"step":1e99,"lengths":[5]}\n', "step: must be an integer above 4: 1e+99"),
    "loss": (
        b'{"lengths":[5],"loss_tokens":6}\n',
        "step 5: 6 loss tokens; there are from 0 to 5, every token at most",
    ),
    "loss negative": (
        b'{"lengths":[5],"loss_tokens":-1}\n',
        "loss_tokens: must be an integer ≥ 0: -1",
    ),
    "foreign": (b'{"lengths":[5],"labels":[1]}\n', "labels: is not a field of a batch"),
    "loads": (
        b'{"lengths":[5,6],"loads":[{"name":"v","tokens":[9],"work_ms":[1,2],"overhead_ms":0}]}\n',
        "loads[0].tokens: has 1 values for 2 sequences",
    ),
    "capacity": (
        (
            b'{"lengths":[5],"loads":[{"name":"v","tokens":[9],"work_ms":[1],"overhead_ms":0,'
            b'"capacity":8}]}\n'
        ),
        "loads[0]: load v: sequence 0 has 9 tokens, a rank holds 8. Split it",
    ),
    "loads empty": (b'{"lengths":[5],"loads":[]}\n', "loads: is empty. Leave it out"),
    "twice": (
        b'{"lengths":[5],"lengths":[6]}\n',
        "is not a whole JSON object (field 'lengths' is written twice. Remove one)",
    ),
}


@pytest.mark.parametrize("case", LINES)
def test_a_malformed_line(case: str, dense: PlannedFiles, tmp_path: Path, output: Path) -> None:
    line, message = LINES[case]
    path = tmp_path / "batches.jsonl"
    path.write_bytes(GOOD + b"\n" + line)
    error_line = complaint(call("plan", "--proposal", dense.proposal, path, "-o", output))
    assert error_line.startswith(f"{path}: line 3: {message}")
    nothing_left(output)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty. Name a file with sequences"),
        (b"\n\n", "holds no sequences. Name a source with sequences"),
    ],
)
def test_a_file_without_batches(
    content: bytes, problem: str, dense: PlannedFiles, tmp_path: Path, output: Path
) -> None:
    path = tmp_path / "batches.jsonl"
    path.write_bytes(content)
    message = complaint(call("plan", "--proposal", dense.proposal, path, "-o", output))
    assert message == f"{path}: {problem}"
    nothing_left(output)


def test_a_missing_file(dense: PlannedFiles, tmp_path: Path, output: Path) -> None:
    path = tmp_path / "none.jsonl"
    message = complaint(call("plan", "--proposal", dense.proposal, path, "-o", output))
    assert message == f"{path}: no such file or folder. Check the path"
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.md").write_text("one text")
    message = complaint(call("plan", "--proposal", dense.proposal, folder))
    assert message.startswith(f"{folder}: a folder is text")
    (folder / "a.md").rename(folder / "a.npy")
    message = complaint(call("plan", "--proposal", dense.proposal, folder))
    assert message.startswith(f"{folder / 'a.npy'}: is a data file in a folder of texts; name such")
    nothing_left(output)


def test_the_same_sequence_twice_is_planned_twice(dense: PlannedFiles, tmp_path: Path) -> None:
    """Sampling with replacement, and a step over the end of an epoch, repeat ids."""
    path = tmp_path / "batches.jsonl"
    path.write_text('{"ids":[3,3],"lengths":[10,10]}\n')
    assert call("plan", "--proposal", dense.proposal, path).code == 0


def test_line_ends_of_other_systems(dense: PlannedFiles, tmp_path: Path) -> None:
    path = tmp_path / "batches.jsonl"
    path.write_bytes(GOOD.replace(b"\n", b"\r\n") + b"\r\n" + b'{"lengths":[5]}')
    outcome = call("plan", "--proposal", dense.proposal, path)
    assert (outcome.code, outcome.out.count("\n")) == (0, 2)


@pytest.mark.parametrize("option", ["--tokens", "--steps", "--window", "--tokenizer"])
def test_sampling_options_are_rejected_with_given_batches(
    dense: PlannedFiles, output: Path, tmp_path: Path, option: str
) -> None:
    batches = tmp_path / "batches.jsonl"
    batches.write_bytes(GOOD)
    given = ("--proposal", dense.proposal, batches, "-o", output)
    rejected = complaint(call("plan", *given, option, 2))
    assert rejected.startswith(f"{option} is for lengths: {batches} has batches, which are drawn")
    nothing_left(output)


def test_an_input_is_not_overwritten(dense: PlannedFiles, lengths: Path) -> None:
    before = dense.proposal.read_bytes()
    outcome = call("plan", "--proposal", dense.proposal, lengths, "-o", dense.proposal)
    assert "is an input of this command" in complaint(outcome)
    assert dense.proposal.read_bytes() == before


def test_batches_with_images_are_planned(
    dense: PlannedFiles, lockstep: PlannedFiles, tmp_path: Path
) -> None:
    batches, plans = tmp_path / "batches.jsonl", tmp_path / "plans.jsonl"
    load = {"name": "vision", "tokens": [0, 900] * 4, "work_ms": [0, 80.5] * 4, "overhead_ms": 1}
    batches.write_text(json.dumps({"lengths": [500, 2_000] * 4, "loads": [load]}) + "\n")
    succeeded(call("plan", "--proposal", dense.proposal, batches, "-o", plans))
    (plan,) = read_plans(plans)
    assert plan.loads[0].tokens == (0, 900) * 4
    assert "phases of the slowest pipeline: vision" in succeeded(
        call("explain", plans, "--step", 0)
    )
    succeeded(call("check", "plans", plans, "--proposal", dense.proposal, "--prove"))
    failed = complaint(call("plan", "--proposal", lockstep.proposal, batches))
    assert failed.startswith("loads are for pipelines: profile gpt-7b-a100-40gb is of ZeRO-3")
