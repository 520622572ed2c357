"""Token data from files: the same samples from each kind, and one line for other files."""

import struct
from pathlib import Path

import numpy as np
import pytest

from seqplan.runtime.data.files import FoldedTokens, token_file
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.errors import DataError

ROWS = [[5, 6, 7, 8], [1, 2, 3, 70_000]]


def jsonl(path: Path) -> Path:
    path = path / "tokens.jsonl"
    path.write_text(f'{ROWS[0]}\n{{"input_ids": {ROWS[1]}, "text": "…"}}\n', encoding="utf-8")
    return path


def npy(path: Path) -> Path:
    path = path / "tokens.npy"
    np.save(path, np.array(ROWS, dtype=np.int32))
    return path


def megatron(path: Path) -> Path:
    np.array(ROWS, dtype="<i4").tofile(path / "tokens.bin")
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 4, 2, 3)
    (path / "tokens.idx").write_bytes(header + struct.pack("<2i2q3q", 4, 4, 0, 16, 0, 1, 2))
    return path / "tokens.idx"


@pytest.mark.parametrize("make_file", [jsonl, npy, megatron])
def test_the_same_samples_from_every_kind(tmp_path: Path, make_file: object) -> None:
    data = token_file(make_file(tmp_path))  # type: ignore[operator]
    for id, row in enumerate(ROWS):
        assert data.length(id) == 4
        assert data.tokens(id, 1, 4).tolist() == row[1:]
    with pytest.raises(DataError, match="the data has no such id"):
        data.length(2)
    folded = FoldedTokens(data, 256)
    assert folded.length(1) == 4
    assert folded.tokens(1, 2, 4).tolist() == [3, 70_000 % 256]


def test_folding_leaves_small_ids() -> None:
    data = SeededTokens(256, 3)
    assert FoldedTokens(data, 256).tokens(9, 5, 50).tolist() == data.tokens(9, 5, 50).tolist()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"1 2 3", r"a\.txt: tokens come from \.idx with \.bin, \.npy or \.jsonl"),
        ("a.jsonl", b"[1]\n[1,", r"a\.jsonl:2: Expecting value"),
        ("a.jsonl", b'{"text": "x"}\n', r"a\.jsonl:1: the object has neither tokens nor input_ids"),
        ("a.jsonl", b"[1, 2.5]\n", r"a\.jsonl:1: must be a list of token ids"),
        ("a.jsonl", b"7\n", r"a\.jsonl:1: must be a list of token ids"),
        (
            "a.jsonl",
            b'{"tokens": [1], "tokens": [2]}\n',
            r"a\.jsonl:1: field 'tokens' is written",
        ),
        ("a.jsonl", b"[99999999999999999999]\n", r"a\.jsonl:1: a token id does not fit 64 bits"),
        ("a.jsonl", b"\xff\xfe", r"a\.jsonl: not UTF-8"),
        ("a.npy", b"PK nothing", r"a\.npy: is not a whole \.npy file"),
        ("a.npy", b"", r"a\.npy: is not a whole \.npy file"),
        ("a.idx", b"MMID", r"a\.idx: is not a Megatron index"),
    ],
)
def test_other_files_are_rejected(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        token_file(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("array", [np.arange(9), np.zeros((2, 3))])
def test_arrays_that_hold_no_tokens(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataError, match=r"must be integers \(samples, tokens\), not "):
        token_file(tmp_path / "a.npy")


@pytest.mark.parametrize("name", ["a.npy", "a.jsonl", "a.idx"])
def test_files_that_are_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="No such file or directory"):
        token_file(tmp_path / name)
