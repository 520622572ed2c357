"""Bad input: one line with problem and place, the right exit code, and no file left behind."""

import copy
import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call, complaint, nothing_left
from planned_files import PlannedFiles, propose

from seqplan.costs.shipped.catalogue import load_shipped

# Lengths


@pytest.mark.parametrize("command", ["propose", "plan", "lengths"])
def test_bad_lengths(command: str, tmp_path: Path, output: Path, lockstep: PlannedFiles) -> None:
    """The messages of each format are tested with its source."""
    sources = {"a.txt": "5\n-3\n", "a.xml": "1\n", "none.npy": None}
    messages = ("length -3 is not positive", ".xml is not a source of lengths", "no such file")
    for (name, content), message in zip(sources.items(), messages, strict=True):
        source = tmp_path / name
        if content is not None:
            source.write_text(content)
        if command == "propose":
            line = complaint(propose(source, output))
        elif command == "plan":
            line = complaint(call("plan", "--proposal", lockstep.proposal, source, "-o", output))
        else:
            line = complaint(call("lengths", source, "-o", output.with_suffix(".npy")))
        assert message in line
        assert name in line
        nothing_left(output)


def test_an_output_is_no_source_of_lengths(tmp_path: Path) -> None:
    source = tmp_path / "a.npy"
    np.save(source, np.array([5, 7]))
    for name in (source, tmp_path / "?.npy"):
        outcome = call("lengths", name, "-o", source)
        assert "is an input of this command" in complaint(outcome)


@pytest.mark.parametrize("option", ["-o", "--plot"])
def test_samples_are_not_overwritten(tmp_path: Path, option: str) -> None:
    samples = tmp_path / "samples.jsonl"
    options = {"--samples": samples, "-o": tmp_path / "profile.json", option: samples}
    line = ["profile", "measure", "--model", "small", *sum(options.items(), ())]
    assert "is an input of this command" in complaint(call(*line))


# Infeasible


def test_a_sequence_longer_than_any_scheme_holds(tmp_path: Path, output: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("100\n20000\n300\n")
    few = ("--tokens", 1000)
    limit = max(model.max_sequence for model in load_shipped("gpt-7b-a100-40gb").usable(4, 65536))
    message = complaint(propose(source, output, "--gpus", 4, "--max-len", 65536), 3)
    assert message == (
        "sequence 1 has 20000 tokens, but on 4 GPUs the longest that any scheme of "
        f"gpt-7b-a100-40gb holds is {limit} (u4); use --max-len {limit} to truncate, or more GPUs"
    )
    nothing_left(output)
    # Its fix works.
    assert propose(source, output, "--gpus", 4, "--max-len", limit, *few).code == 0
    output.unlink()
    assert propose(source, output, "--gpus", 8, "--max-len", 65536, *few).code == 0


LLAMA = ("--profile", "llama-7b-a800-80gb")
LARGE = ("--profile", "llama-32b-a800-80gb")
FEW = (
    "1 GPU is too few for llama-7b-a800-80gb: the smallest scheme to choose from, pp2, takes 2; "
    "add GPUs"
)
NO_ROOM = (
    "4 GPUs are too few for llama-32b-a800-80gb: the model states leave no room for tokens on any "
    "scheme that fits; add GPUs"
)


@pytest.mark.parametrize(
    ("more", "code", "line"),
    [
        ((*LLAMA, "--schemes", "measured", "--gpus", 1), 3, FEW),
        ((*LARGE, "--schemes", "tp16"), 3, "*the smallest scheme to choose from, tp16, takes 16;*"),
        ((*LARGE, "--gpus", 4), 3, NO_ROOM),
        (("--max-len", 400_000), 2, "*a context of 400000 tokens is beyond the 393216*"),
        (
            ("--optimizer-shards", 9),
            2,
            "optimizer_shards must be an integer from 1 to the 8 *, not 9",
        ),
        (("--profile", "gpt-7b"), 2, "*did you mean gpt-7b-a100-40gb?*"),
        (("--sync", "overlap=0.5"), 2, "--sync and overlap= of --sync *profile gpt-7b* of ZeRO-3*"),
        (("--sync", "900"), 2, "*profile gpt-7b-a100-40gb is of ZeRO-3*"),
        (("--seed", 2**63), 2, "--seed must be * below 2[*][*]63: 9223372036854775808"),
        (("--sync", "-1"), 2, "*must be a number of 0 or more: '-1'*"),
        (
            (*LLAMA, "--sync", "none,overlap=0.5"),
            2,
            "overlap= of --sync is the share of the sync that is hidden, and --sync is none*",
        ),
        (
            (*LLAMA, "--schemes", "tp3"),
            2,
            "*has no scheme of layout tp3; its layouts are tp1, pp2*",
        ),
        (("--schemes", "u2"), 2, "*layout must be tp and pp, as tp4.pp2: 'u2'*"),
        (("--schemes", "two"), 2, "*scheme 'two': 'two' is not understood*"),
        (("--sync", "as usual"), 2, "*must be a number of 0 or more: 'as usual'*"),
        (
            (*LLAMA, "--sync", "1", "--sync", "overlap=1.5"),
            2,
            "*must be a share from 0 to 1, not 1.5*",
        ),
    ],
)
def test_options_that_no_proposal_can_have(
    more: tuple[str | int, ...], code: int, line: str, lengths: Path, output: Path
) -> None:
    assert fnmatchcase(complaint(propose(lengths, output, *more), code), line)
    nothing_left(output)


def test_profiles_are_shown_within_their_gpus() -> None:
    options = ("--gpus", 8, "--optimizer-shards", 9)
    message = complaint(call("profile", "show", "gpt-7b-a100-40gb", *options))
    assert message == "--optimizer-shards must be at most --gpus 8: 9"


def test_a_sync_is_printed_and_kept(lengths: Path, output: Path) -> None:
    more = ("--profile", "llama-7b-a800-80gb", "--tokens", 8000)
    text = propose(lengths, output, *more).out
    assert "All with the sync, derived for each layout: 6 bytes a parameter" in text
    assert "derived, not measured (seqplan profile show)" in text
    document = json.loads(output.read_text())
    assert {"tp", "pp", "ms"} == set(document["sync"]["by_layout"][0])
    assert (document["layouts"]["chosen"] or "several layouts") in text
    output.unlink()
    text = propose(lengths, output, *more, "--gpus", 2, "--sync", "900,1400").out
    assert "All with the sync, as given: 900 ms, different layouts 1400." in text
    assert json.loads(output.read_text())["sync"]["heterogeneous_ms"] == 1400
    output.unlink()
    more = (*more, "--gpus", 2, "--schemes", "measured")
    text = propose(lengths, output, *more, "--sync", "none").out
    assert "with the sync" not in text
    assert "derived" not in text
    assert "sync" not in json.loads(output.read_text())


def test_a_step_that_no_candidate_holds(dense: PlannedFiles, tmp_path: Path, output: Path) -> None:
    """Steps before it were planned, but a partial file is no plan file."""
    proposal = tmp_path / "proposal.json"
    short = tmp_path / "short.txt"
    short.write_text("50\n" * 100)
    outcome = call(
        *("propose", "--profile", dense.profile, "--gpus", 4, short),
        *("--max-len", 60000, "--tokens", 400, "-o", proposal),
    )
    assert outcome.code == 0
    batches = tmp_path / "batches.jsonl"
    batches.write_text('{"lengths":[7]}\n{"ids":[5,6],"lengths":[9,59999]}\n{"lengths":[7]}\n')
    for workers in (1, 2):
        completed = call(
            *("plan", "--proposal", proposal, batches, "--workers", workers), *("-o", output)
        )
        assert completed.code == 3
        assert completed.err.splitlines()[-1].startswith(
            "seqplan: step 1: sequence 6 has 59999 tokens"
        )
        nothing_left(output)


# Profiles


def test_an_unknown_profile(dense: PlannedFiles) -> None:
    for command in (("check", "plans", dense.plans, "--profile"), ("profile", "show")):
        assert "did you mean" in complaint(call(*command, "llama-7b-a800"))


def test_a_malformed_profile(tmp_path: Path, lengths: Path, output: Path) -> None:
    document: Any = copy.deepcopy(dict(load_shipped("gpt-7b-a100-40gb").document))
    document["schemes"][2].pop("b")
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document))
    line = complaint(propose(lengths, output, "--profile", path))
    assert line == f"{path}: schemes[2].b: is missing"
    nothing_left(output)
