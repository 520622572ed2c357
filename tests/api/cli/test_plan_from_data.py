"""From a data set to plans and to whether they pay, in one command without a profile."""

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import call, complaint, succeeded

from seqplan import Profile, Proposal, read_plans

MODEL = ("--model", "llama3-8b", "--hardware", "h100", "--gpus", 4)
SMALL = ("--tokens", 20_000, "--steps", 2, "--max-len", 8192)
QUICK = (*SMALL, "--trainer", "transformers")
"""Few schemes and rivals, for tests of anything else: a run takes a fifth of the time."""


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """Long-tailed lengths up to 16,000 tokens."""
    drawn = np.random.default_rng(0).lognormal(6.5, 1.2, 3000).astype(int) + 5
    np.save(tmp_path / "lengths.npy", np.minimum(drawn, 16_000))
    return tmp_path / "lengths.npy"


def test_one_command_leaves_every_file(lengths: Path, tmp_path: Path) -> None:
    folder = tmp_path / "qwen2.5"
    text = succeeded(call("plan", lengths, *MODEL, *SMALL[:2], *SMALL[4:], "-o", folder))
    assert "profile derived for llama3-8b on 4 × h100-80gb, chunked loss: nothing was" in text
    assert "nothing was measured" in text
    answer = text[text.index("does it pay: ") :]
    assert "over the best static run, " in answer
    assert "over the nearest published system, " in answer
    assert "95 % interval" in answer
    assert "expected error against devices: 4 %" in answer
    assert f"written: {folder}" in text
    profile = Profile.load(str(folder / "profile.json"))
    assert Proposal.load(f"{folder}/proposal.json").profile.digest == profile.digest
    assert len(list(read_plans(folder / "plans.jsonl"))) == 20
    assert (folder / "report.html").read_text().startswith("<!")
    assert np.array_equal(np.load(folder / "lengths.npy"), np.load(lengths))
    # The parts serve again, and give the same plans.
    again = tmp_path / "again.jsonl"
    by_proposal = ("--proposal", folder / "proposal.json", "-o", again)
    succeeded(call("plan", folder / "lengths.npy", *by_proposal))
    assert again.read_bytes() == (folder / "plans.jsonl").read_bytes()
    succeeded(call("check", "plans", again, "--profile", folder / "profile.json"))
    # A later run by another profile replaces every part.
    other = ("--profile", "llama-7b-a800-80gb", *SMALL, "--gpus", 4)
    succeeded(call("plan", lengths, *other, "-o", folder))
    plans = folder / "plans.jsonl"
    succeeded(call("check", "plans", plans, "--profile", folder / "profile.json"))


def test_summary_as_json_without_files(lengths: Path) -> None:
    fields = json.loads(succeeded(call("plan", lengths, *MODEL, *SMALL, "--json")))
    assert fields["pays"] in (True, False, None)
    assert fields["expected_error"] == 0.04
    static, published = fields["over"][:2]
    assert static["rival"] == "the best static run"
    assert published["rival"] == "the nearest published system"
    assert static["interval"] is None  # of two steps
    assert fields["steps"] == 2


def test_the_answer_is_open_if_the_steps_lack_the_longest_sequences(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.array([390_000] + [500] * 1200))
    text = " ".join(succeeded(call("plan", tmp_path / "one.npy", *MODEL)).split())
    assert "does it pay: open. The steps lack the longest sequences of the data. " in text
    assert "up to 500 tokens, the data up to 390,000, which sizes static strategies. " in text
    assert "Give --steps 50, an epoch, or a smaller --max-len, for all sequences. " in text
    assert "interval: 20 steps that hardly differ" in text


def test_steps_shorter_than_a_sequence_may_be_are_noted(lengths: Path) -> None:
    text = " ".join(
        succeeded(call("plan", lengths, *MODEL, *QUICK, "--tokens", 900, "--steps", 9)).split()
    )
    assert "A step of 900 tokens is shorter than --max-len 8,192: a longer sequence is a" in text
    assert "tokens of a step: 1,434 on average, 900 requested" in text
    text = succeeded(call("plan", lengths, *MODEL, *QUICK))
    assert "is shorter than" not in text
    assert "on average" not in text


def test_the_answer_states_the_options_that_it_leaves_out(lengths: Path, tmp_path: Path) -> None:
    more = (*SMALL, "--gpus", 4, "--slowdown", "3=1.5", "--window", 2)
    profile = ("--profile", "llama3-8b-h100-80gb")
    text = succeeded(call("plan", lengths, *profile, *more, "-o", tmp_path / "run"))
    assert "\n  of plans without --slowdown and --window\n" in text
    report = (tmp_path / "run" / "report.html").read_text()
    assert "<li>The comparison is of plans without --slowdown and --window.</li>" in report
    assert "of plans without" not in succeeded(call("plan", lengths, *profile, *more[:-4]))


def test_trainer_decides_the_schemes_and_the_rival_of_today(lengths: Path) -> None:
    text = succeeded(call("plan", lengths, *MODEL, *QUICK[2:], "--gpus", 8))
    assert "steps of 25,000 tokens (default, see --tokens), sequences up to 8,192" in " ".join(
        text.split()
    )
    assert "strategies: 8×tp1 (2×)" in text
    assert "as users of transformers run today" in " ".join(text.split())
    assert "does it pay: no" in text


def test_a_length_that_no_number_of_gpus_holds_is_stated(tmp_path: Path) -> None:
    np.save(tmp_path / "long.npy", np.full(9, 60_000))
    line = complaint(call("plan", tmp_path / "long.npy", *MODEL, "--trainer", "transformers"), 3)
    assert "or another --trainer: transformers keeps a sequence on one GPU, and on any" in line


def test_published_profile_goes_before_a_derived_one(lengths: Path, tmp_path: Path) -> None:
    few = ("--gpus", 8, "--trainer", "verl-megatron", *SMALL)
    published = ("--model", "llama-7b", "--hardware", "a800-80gb")
    text = succeeded(call("plan", lengths, *published, *few))
    assert "profile llama-7b-a800-80gb, which ships" in text
    # A file of another model has no published profile, whatever its name.
    small = tmp_path / "llama-7b.json"
    small.write_text('{"base": "llama-7b", "layers": 8}')
    text = succeeded(call("plan", lengths, "--model", small, *published[2:], *few))
    assert "nothing was measured" in text
    text = succeeded(call("plan", lengths, "--profile", "llama-7b-a800-80gb", *few))
    assert "expected error against devices: unknown" in text


def test_text_is_counted_by_bytes(tmp_path: Path) -> None:
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": "word " * n}) + "\n" for n in range(1, 900)))
    text = succeeded(call("plan", source, "--tokenizer", 5, *MODEL, *QUICK))
    assert "899 sequences, 404,550 tokens, longest 899" in text


def test_a_failure_leaves_no_folder(lengths: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    complaint(call("plan", lengths, *MODEL, "--tokens", 10**9, "-o", tmp_path / "a/run"), 2)
    assert sorted(tmp_path.iterdir()) == before


def test_options_that_a_proposal_states_are_rejected(lengths: Path, tmp_path: Path) -> None:
    for option, value in (("--gpus", 8), ("--max-len", 4096), ("--hardware", "h100")):
        line = complaint(call("plan", lengths, "--proposal", tmp_path / "p.json", option, value))
        assert line.startswith(f"{option} is stated by the proposal")
    batches = tmp_path / "batches.jsonl"
    batches.write_text('{"lengths":[5]}\n')
    assert "has batches, for which" in complaint(call("plan", batches, *MODEL))
