"""Bad input: one line with problem and place, the right exit code, and no file left behind."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call, complaint, nothing_left
from planned_files import PlannedFiles, propose

from seqplan.costs.shipped.catalogue import load_shipped

# Lengths


def idx(sequences: list[int], *, magic: bytes = b"MMIDIDX\0\0", cut: int = 0) -> bytes:
    count = len(sequences)
    whole = (
        magic
        + struct.pack("<QBQQ", 1, 4, count, count + 1)
        + struct.pack(f"<{count}i", *sequences)
        + struct.pack(f"<{count}q", *range(count))
        + struct.pack(f"<{count + 1}q", *range(count + 1))
    )
    return whole[: len(whole) - cut]


SOURCES: dict[str, tuple[str, bytes, str]] = {
    "empty text": ("a.txt", b"", "a.txt: is empty"),
    "empty npy": ("a.npy", b"", "a.npy: is empty"),
    "empty idx": ("a.idx", b"", "a.idx: is empty"),
    "blank": ("a.txt", b"\n\n", "a.txt: holds no sequences"),
    "zero": ("a.txt", b"5\n0\n", "length 0 is not positive"),
    "negative": ("a.txt", b"5\n-3\n", "length -3 is not positive"),
    "fraction": ("a.txt", b"5\n2.5\n", "'2.5' is not an integer"),
    "nan": ("a.txt", b"nan\n", "'nan' is not an integer"),
    "huge": ("a.txt", b"99999999999999999999\n", "above the largest accepted"),
    "json nan": ("a.jsonl", b'{"length": NaN}\n', "it must be an integer"),
    "json text": ("a.jsonl", b'{"length"\n', "a.jsonl"),
    "truncated idx": ("a.idx", idx([5, 6, 7], cut=5), "a.idx"),
    "foreign idx": ("a.idx", idx([5], magic=b"FOREIGN\0\0"), "a.idx"),
    "zero in idx": ("a.idx", idx([5, 0]), "length 0 is not positive"),
    "foreign npy": ("a.npy", b"PK\3\4", "a.npy: is not a .npy file"),
    "suffix": ("a.csv", b"1\n", "a.csv: .csv is not a source of lengths"),
}


@pytest.mark.parametrize("command", ["propose", "plan", "lengths"])
@pytest.mark.parametrize("case", SOURCES)
def test_bad_lengths(
    case: str, command: str, tmp_path: Path, output: Path, lockstep: PlannedFiles
) -> None:
    name, content, message = SOURCES[case]
    source = tmp_path / name
    source.write_bytes(content)
    if command == "propose":
        line = complaint(propose(source, output))
    elif command == "plan":
        line = complaint(call("plan", "--proposal", lockstep.proposal, source, "-o", output))
    else:
        line = complaint(call("lengths", source, "-o", output.with_suffix(".npy")))
    assert message in line
    assert name in line
    nothing_left(output)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([1.0, np.nan]), "holds float64, lengths are integers"),
        (np.array([3, 0], np.uint16), "index 1: length 0 is not positive"),
        (np.array([-1], np.int8), "index 0: length -1 is not positive"),
        (np.array([], np.int64), "holds no sequences"),
        (np.array([[5]]), "has shape (1, 1), lengths are one-dimensional"),
    ],
)
def test_bad_arrays(
    values: np.typing.NDArray[Any], message: str, tmp_path: Path, output: Path
) -> None:
    np.save(tmp_path / "a.npy", values)
    assert message in complaint(propose(tmp_path / "a.npy", output))
    nothing_left(output)


def test_missing_lengths(tmp_path: Path, output: Path) -> None:
    assert "no such file" in complaint(propose(tmp_path / "none.npy", output))


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


def test_fewer_gpus_than_the_smallest_scheme(lengths: Path, output: Path) -> None:
    few = ("--profile", "llama-7b-a800-80gb", "--schemes", "measured", "--gpus", 1)
    message = complaint(propose(lengths, output, *few), 3)
    assert message == (
        "1 GPU is too few for llama-7b-a800-80gb: the smallest scheme to choose from, pp2, "
        "takes 2; add GPUs"
    )
    nothing_left(output)
    few = ("--profile", "llama-32b-a800-80gb", "--schemes", "tp16", "--gpus", 8)
    assert "the smallest scheme to choose from, tp16, takes 16;" in complaint(
        propose(lengths, output, *few), 3
    )


def test_states_that_do_not_fit(lengths: Path, output: Path) -> None:
    message = complaint(
        propose(lengths, output, "--profile", "llama-32b-a800-80gb", "--gpus", 4), 3
    )
    assert message == (
        "4 GPUs are too few for llama-32b-a800-80gb: the model states leave no room for tokens on "
        "any scheme that fits; add GPUs"
    )
    nothing_left(output)


def test_a_context_that_the_profile_does_not_cover(lengths: Path, output: Path) -> None:
    message = complaint(propose(lengths, output, "--max-len", 400_000))
    assert "a context of 400000 tokens is beyond the 393216" in message
    nothing_left(output)


def test_more_optimizer_shards_than_gpus(lengths: Path, output: Path) -> None:
    message = complaint(propose(lengths, output, "--optimizer-shards", 9))
    assert message == "optimizer_shards must be an integer from 1 to the 8 GPUs, not 9"
    nothing_left(output)
    message = complaint(
        call("profile", "show", "gpt-7b-a100-40gb", "--gpus", 8, "--optimizer-shards", 9)
    )
    assert message == "--optimizer-shards must be at most --gpus 8: 9"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--sync", "overlap=0.5"), "profile gpt-7b-a100-40gb is of ZeRO-3"),
        (("--sync", "900"), "profile gpt-7b-a100-40gb is of ZeRO-3"),
        (("--sync", "-1"), "must be a number of 0 or more: '-1'"),
        (
            ("--profile", "llama-7b-a800-80gb", "--sync", "none,overlap=0.5"),
            "--overlap is the share of the sync that is hidden, and --sync is none",
        ),
        (
            ("--profile", "llama-7b-a800-80gb", "--schemes", "tp3"),
            "profile llama-7b-a800-80gb: has no scheme of layout tp3; its layouts are tp1, pp2",
        ),
        (("--schemes", "u2"), "layout must be tp and pp, as tp4.pp2: 'u2'"),
        (("--schemes", "two"), "scheme 'two': 'two' is not understood"),
        (("--sync", "as usual"), "must be a number of 0 or more: 'as usual'"),
        (
            ("--profile", "llama-7b-a800-80gb", "--sync", "1", "--sync", "overlap=1.5"),
            "overlap must be a share from 0 to 1, not 1.5",
        ),
    ],
)
def test_an_sync_that_cannot_be(
    more: tuple[str, ...], message: str, lengths: Path, output: Path
) -> None:
    assert message in complaint(propose(lengths, output, *more))
    nothing_left(output)


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
            *("plan", "--proposal", proposal, batches, "--workers", workers),
            *("-o", output),
        )
        assert completed.code == 3
        assert completed.err.splitlines()[-1].startswith(
            "seqplan: step 1: sequence 6 has 59999 tokens"
        )
        nothing_left(output)


# Profiles


def test_an_unknown_profile(lengths: Path, output: Path, dense: PlannedFiles) -> None:
    message = complaint(propose(lengths, output, "--profile", "gpt-7b"))
    assert "did you mean gpt-7b-a100-40gb?" in message
    nothing_left(output)
    assert "did you mean" in complaint(
        call("check", "plans", dense.plans, "--profile", "llama-7b-a800")
    )
    assert "did you mean" in complaint(call("profile", "show", "llama-7b-a800"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: s.update(a=-1e-6),
            "schemes[2] (u4).a: must be a number from 0 to 1e+18: -1e",
        ),
        (lambda s: s.pop("b"), "schemes[2].b: is missing"),
        (lambda s: s.update(c=float("nan")), "schemes[2] (u4).c: must be a number from 0 to 1e+18"),
        (lambda s: s.update(tp=2), "under ZeRO-3 every scheme must have tp = pp = 1"),
    ],
)
def test_a_malformed_profile(
    change: Callable[[dict[str, Any]], Any],
    message: str,
    tmp_path: Path,
    lengths: Path,
    output: Path,
) -> None:
    document: Any = copy.deepcopy(dict(load_shipped("gpt-7b-a100-40gb").document))
    change(document["schemes"][2])
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document))
    line = complaint(propose(lengths, output, "--profile", path))
    assert line.startswith(f"{path}: ")
    assert message in line
    nothing_left(output)
