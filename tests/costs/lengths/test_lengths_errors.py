"""An error in a source is one line: the problem, its place, and a fix."""

from __future__ import annotations

import builtins
import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from length_files import LARGE, SMALL, complaint, file_of, write_jsonl, write_tokenizer

from seqplan.costs.lengths import LengthsError, SourceOptions, check_output, save_lengths


def array(path: Path, values: Any) -> Path:
    np.save(path, np.asarray(values))
    return path


def table(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def records(*items: object) -> Callable[[Path], Path]:
    return lambda folder: write_jsonl(folder / "a.jsonl", items)


WANTS = "it must be an integer, a list of ids or a text"
TEXT = (
    "is text. Give a tokenizer.json to count its tokens, or bytes per token to estimate them "
    "(--tokenizer 4)"
)
UNDERSTOOD = (
    "(understood: .npy .txt .json .jsonl .jsonl.gz .parquet .arrow .idx, "
    "a folder of text files or of a saved data set). Name one of these"
)
ONE_A_LINE = "is not an integer; a .txt source has one length a line"

CASES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda d: d / "a.npy", "a.npy: no such file or folder. Check the path"),
    "no match": (lambda d: d / "*.idx", "*.idx: matches no file. Change the pattern"),
    "suffix": (
        lambda d: file_of(d / "a.csv", "1"),
        f"a.csv: .csv is not a source of lengths {UNDERSTOOD}",
    ),
    "no suffix": (
        lambda d: file_of(d / "a", "1"),
        f"a: a name without suffix is not a source of lengths {UNDERSTOOD}",
    ),
    "bin": (
        lambda d: file_of(d / "a.bin", "1"),
        f"a.bin: .bin is not a source of lengths; give the .idx next to it {UNDERSTOOD}",
    ),
    "empty": (lambda d: file_of(d / "a.txt", ""), "a.txt: is empty. Name a file with sequences"),
    # .npy
    "npy foreign": (
        lambda d: file_of(d / "a.npy", "PK\3\4"),
        "a.npy: is not a .npy file; write one with numpy.save",
    ),
    "npy float": (
        lambda d: array(d / "a.npy", [1.0, 2.0]),
        "a.npy: holds float64, lengths are integers; cast it, for example with .astype('int64')",
    ),
    "npy bool": (
        lambda d: array(d / "a.npy", [True]),
        "a.npy: holds bool, lengths are integers; cast it, for example with .astype('int64')",
    ),
    "npy shape": (
        lambda d: array(d / "a.npy", [[1, 2]]),
        "a.npy: has shape (1, 2), lengths are one-dimensional. Flatten it",
    ),
    "npy scalar": (
        lambda d: array(d / "a.npy", 1),
        "a.npy: has shape (), lengths are one-dimensional. Flatten it",
    ),
    "npy none": (
        lambda d: array(d / "a.npy", np.empty(0, np.int32)),
        "a.npy: holds no sequences. Name a source with sequences",
    ),
    "npy zero": (lambda d: array(d / "a.npy", [3, 0]), f"a.npy: index 1: length 0 {SMALL}"),
    "npy negative": (lambda d: array(d / "a.npy", [3, -2]), f"a.npy: index 1: length -2 {SMALL}"),
    "npy large": (
        lambda d: array(d / "a.npy", [1, 2**31]),
        f"a.npy: index 1: length 2147483648 {LARGE}",
    ),
    "npy huge": (
        lambda d: array(d / "a.npy", np.array([2**63], np.uint64)),
        f"a.npy: index 0: length 9223372036854775808 {LARGE}",
    ),
    # .txt
    "txt none": (
        lambda d: file_of(d / "a.txt", "# none\n\n"),
        "a.txt: holds no sequences. Name a source with sequences",
    ),
    "txt word": (lambda d: file_of(d / "a.txt", "1\n\nx\n"), f"a.txt: line 3: 'x' {ONE_A_LINE}"),
    "txt float": (lambda d: file_of(d / "a.txt", "1\n2.0\n"), f"a.txt: line 2: '2.0' {ONE_A_LINE}"),
    "txt nan": (lambda d: file_of(d / "a.txt", "nan"), f"a.txt: line 1: 'nan' {ONE_A_LINE}"),
    "txt two": (lambda d: file_of(d / "a.txt", "1 2\n"), f"a.txt: line 1: '1 2' {ONE_A_LINE}"),
    "txt grouped": (
        lambda d: file_of(d / "a.txt", "1_000\n"),
        f"a.txt: line 1: '1_000' {ONE_A_LINE}",
    ),
    "txt zero": (lambda d: file_of(d / "a.txt", "# h\n0\n"), f"a.txt: line 2: length 0 {SMALL}"),
    "txt huge": (
        lambda d: file_of(d / "a.txt", "1\n" + 30 * "9"),
        f"a.txt: line 2: length {30 * '9'} {LARGE}",
    ),
    "txt bytes": (lambda d: file_of(d / "a.txt", b"1\n\xff\n"), f"a.txt: line 2: '�' {ONE_A_LINE}"),
    # .jsonl
    "jsonl none": (
        lambda d: file_of(d / "a.jsonl", "\n\n"),
        "a.jsonl: holds no sequences. Name a source with sequences",
    ),
    "jsonl malformed": (
        lambda d: file_of(d / "a.jsonl", '{"length": 3}\n{"length": \n'),
        (
            "a.jsonl: line 2: is not JSON: Expecting value at column 11; "
            "a .jsonl source has one object a line"
        ),
    ),
    "jsonl array": (
        records([1, 2]),
        "a.jsonl: line 1: holds [1, 2]; a .jsonl source has one object a line",
    ),
    "jsonl utf-8": (
        lambda d: file_of(d / "a.jsonl", b'{"length": 3}\n{"x": "\xff"}\n'),
        "a.jsonl: line 2: is not UTF-8 (byte 8: invalid start byte); convert the file",
    ),
    "jsonl no field": (
        records({"a": 1, "b": 2}),
        (
            "a.jsonl: line 1: none of the fields length, num_tokens, input_ids, tokens, ids, text, "
            "nor of a conversation; it has 'a', 'b': name one with --field"
        ),
    ),
    "jsonl field goes": (
        records({"length": 1}, {"b": 2}),
        "a.jsonl: line 2: no field 'length'; it has 'b'",
    ),
    "jsonl null": (
        records({"length": None}),
        f"a.jsonl: line 1: field 'length' is None; {WANTS}",
    ),
    "jsonl nan": (
        records({"length": 1}, {"length": float("nan")}),
        f"a.jsonl: line 2: field 'length' is nan; {WANTS}",
    ),
    "jsonl float": (records({"length": 3.0}), f"a.jsonl: line 1: field 'length' is 3.0; {WANTS}"),
    "jsonl bool": (records({"length": True}), f"a.jsonl: line 1: field 'length' is True; {WANTS}"),
    "jsonl mixed": (
        records({"length": 1}, {"length": "2"}),
        (
            "a.jsonl: line 2: field 'length' holds a text, in the records before an integer. "
            "Use one type in all records"
        ),
    ),
    "jsonl zero": (
        records({"length": 1}, {"length": 0}),
        f"a.jsonl: line 2: length 0 {SMALL}",
    ),
    "jsonl huge": (
        records({"length": 10**30}),
        f"a.jsonl: line 1: length {10**30} {LARGE}",
    ),
    "jsonl no ids": (records({"ids": [1]}, {"ids": []}), f"a.jsonl: line 2: length 0 {SMALL}"),
    "jsonl nested": (
        records({"ids": [[1], [2]]}),
        "a.jsonl: line 1: field 'ids' holds a list of lists; write one sequence a record",
    ),
    "jsonl text": (records({"text": "x"}), f"a.jsonl: field 'text' {TEXT}"),
    # .jsonl.gz
    "gz foreign": (
        lambda d: file_of(d / "a.jsonl.gz", "{}"),
        (
            "a.jsonl.gz: is not a whole gzip file: Not a gzipped file (b'{}'), after line 0. "
            "Write or download it again"
        ),
    ),
    "gz truncated": (
        lambda d: file_of(d / "a.jsonl.gz", gzip.compress(b'{"length": 3}\n')[:-9]),
        "a.jsonl.gz: is a truncated gzip file, it ends after line 1; copy it again",
    ),
    # .parquet
    "parquet foreign": (
        lambda d: file_of(d / "a.parquet", 20 * "x"),
        (
            "a.parquet: is not a whole .parquet file: Parquet magic bytes not found in footer. "
            "Either the file is corrupted or this is not a parquet file. "
            "Write or download it again"
        ),
    ),
    "parquet no field": (
        lambda d: table(d / "a.parquet", a=[1]),
        (
            "a.parquet: schema: none of the fields "
            "length, num_tokens, input_ids, tokens, ids, text, nor of a conversation; it has 'a': "
            "name one with --field"
        ),
    ),
    "parquet float": (
        lambda d: table(d / "a.parquet", length=[1.0]),
        f"a.parquet: field 'length' holds double; {WANTS}",
    ),
    "parquet null": (
        lambda d: table(d / "a.parquet", length=[1, None]),
        "a.parquet: row 1: is null; remove the row",
    ),
    "parquet null ids": (
        lambda d: table(d / "a.parquet", ids=[[1], None]),
        "a.parquet: row 1: is null; remove the row",
    ),
    "parquet zero": (
        lambda d: table(d / "a.parquet", length=[1, 0]),
        f"a.parquet: row 1: length 0 {SMALL}",
    ),
    "parquet nested": (
        lambda d: table(d / "a.parquet", ids=[[[1]]]),
        (
            "a.parquet: field 'ids' holds list<element: list<element: int64>>, a list of lists; "
            "write one sequence a row"
        ),
    ),
    "parquet none": (
        lambda d: table(d / "a.parquet", length=pa.array([], pa.int32())),
        "a.parquet: holds no sequences. Name a source with sequences",
    ),
    "parquet utf-8": (
        lambda d: table(d / "a.parquet", x=pa.array(["y", b"\xff"], pa.binary()).view(pa.string())),
        "a.parquet: row 1: is not UTF-8 (byte 1: invalid start byte); fix the row",
    ),
    "parquet text": (
        lambda d: table(d / "a.parquet", text=["x"]),
        f"a.parquet: field 'text' {TEXT}",
    ),
    # a folder
    "folder": (lambda d: d, f": a folder {TEXT}"),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_errors_are_one_line_with_a_fix(tmp_path: Path, case: str) -> None:
    make, message = CASES[case]
    path = make(tmp_path)
    options = {"field": "x", "tokenizer": 4} if case == "parquet utf-8" else {}
    line = complaint(path, **options)
    assert line.removeprefix(tmp_path.name) == message


def test_options_are_checked(tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.txt", "1")
    assert complaint() == "no source of lengths was given. Name at least one"
    assert complaint(path, field="x") == (
        "--field x: no source has fields. Name it for .jsonl, .parquet or .arrow"
    )
    assert complaint(path, glob="*.md") == "--glob *.md: no source is a folder. Leave it out"
    for rate in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(LengthsError, match=f"--tokenizer {rate:g}: bytes per token must be"):
            SourceOptions(tokenizer=rate)


def test_a_missing_field_names_those_there_are(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"a": 1, "b": 2}])
    assert complaint(path, field="c") == "a.jsonl: line 1: no field 'c'; it has 'a', 'b'"


def test_texts_in_folders(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    assert (
        complaint(folder, tokenizer=4)
        == "texts: holds no text files. Name a folder with text files"
    )
    file_of(folder / "a.md", b"ok \xff")
    assert complaint(folder, tokenizer=tokenizer) == (
        "texts/a.md: is not UTF-8 text (byte 4: invalid start byte); "
        "convert it, or choose the texts with --glob"
    )
    message = complaint(folder, tokenizer=tokenizer, glob="*.txt")
    assert message == "texts: holds no text files like *.txt. Name a folder with text files"
    file_of(folder / "a.md", "")
    for options in ({"tokenizer": tokenizer}, {"tokenizer": 4}):
        assert complaint(folder, **options) == f"texts/a.md: length 0 {SMALL}"
    file_of(folder / "a.md", "ok")
    file_of(folder / "b.parquet", "ok")
    assert complaint(folder, tokenizer=4).startswith("texts/b.parquet: is a data file")


def test_tokenizers(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x"}])
    message = complaint(path, tokenizer=tmp_path / "none.json")
    assert message.endswith(
        "none.json: no such file or folder. Give a tokenizer.json, a tokenizer's folder, or bytes "
        "per token"
    )
    message = complaint(path, tokenizer=tmp_path)
    assert message.endswith(
        "tokenizer.json: no such tokenizer file; give a Hugging Face tokenizer.json"
    )
    message = complaint(path, tokenizer=file_of(tmp_path / "bad.json", "{}"))
    assert message.startswith("bad.json: is not a Hugging Face tokenizer.json: ")


@pytest.mark.parametrize("module", ["pyarrow", "tokenizers"])
def test_missing_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.partition(".")[0] == module:
            raise ImportError(name)
        return real(name, *arguments)

    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    texts = write_jsonl(tmp_path / "a.jsonl", [{"text": "x"}])
    columns = table(tmp_path / "a.parquet", length=[1])
    monkeypatch.setattr(builtins, "__import__", without)
    if module == "pyarrow":
        message = complaint(columns)
        assert message.endswith(".parquet needs the pyarrow package: pip install 'seqplan[arrow]'")
    else:
        message = complaint(texts, tokenizer=tokenizer)
        assert message.endswith("needs the tokenizers package: pip install 'seqplan[tokenizers]'")


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(tmp_path / "a.txt", "1")

    def raise_denied(self: Path, *_: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", raise_denied)
    assert complaint(path) == "a.txt: cannot be read: Permission denied. Check the path"


def test_outputs_are_checked_and_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, reason in [
        ("a.txt", "written as .npy"),
        ("none/a.npy", "there is no folder"),
        (".", "written as .npy"),
    ]:
        with pytest.raises(LengthsError, match=reason):
            check_output(tmp_path / name)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.npy'"):
        save_lengths(tmp_path / "a.npy", np.array([1]))
    assert os.listdir(tmp_path) == []
