"""An error in a source is one line: the problem, its place, and a fix."""

import builtins
import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from length_files import LARGE, SMALL, complaint, file_of, write_jsonl, write_tokenizer

from seqplan.costs.lengths import LengthsError, SourceOptions, check_output, save_lengths


def table(path: Path, **columns: Any) -> Path:
    made = {name: of() if callable(of) else of for name, of in columns.items()}
    pq.write_table(pa.table(made), path)
    return path


def write_source(path: Path, content: Any) -> Path:
    """Write text or bytes, an array, columns of a table, or records as lines."""
    if isinstance(content, np.ndarray):
        np.save(path, content)
    elif isinstance(content, dict):
        table(path, **content)
    elif isinstance(content, list):
        write_jsonl(path, content)
    else:
        file_of(path, content)
    return path


WANTS = "it must be an integer, a list of ids or a text"
TEXT = (
    "is text. Give a tokenizer.json to count its tokens, or bytes per token to estimate them "
    "(--tokenizer 4)"
)
UNDERSTOOD = (
    "(understood: .npy .txt .json .jsonl .jsonl.gz .csv .tsv .parquet .arrow .idx, "
    "a folder of text files or of a saved data set). Name one of these"
)
UNNAMED = "line 1 does not name the columns. Add names, or name a file with one length a line .txt"
A_COLUMN = "holds a list, not a number; write one record a sequence, or rename ids to input_ids"
ONE_A_LINE = "is not an integer; a .txt source has one length a line"
NONE = "holds no sequences. Name a source with sequences"
CAST = "lengths are integers; cast it, for example with .astype('int64')"
FIELDS = (
    "none of the fields length, num_tokens, input_ids, tokens, ids, text, nor of a conversation; "
    "it has"
)
AN_OBJECT = "a .jsonl source has one object a line"

CASES: list[tuple[str, Any, str]] = [
    ("a.xml", "1", f".xml is not a source of lengths {UNDERSTOOD}"),
    ("a", "1", f"a name without suffix is not a source of lengths {UNDERSTOOD}"),
    ("a.bin", "1", f".bin is not a source of lengths; give the .idx next to it {UNDERSTOOD}"),
    ("a.txt", "", "is empty. Name a file with sequences"),
    ("a.npy", "PK\3\4", "is not a .npy file; write one with numpy.save"),
    ("a.npy", np.array([1.0, 2.0]), f"holds float64, {CAST}"),
    ("a.npy", np.array([True]), f"holds bool, {CAST}"),
    ("a.npy", np.array([[1, 2]]), "has shape (1, 2), lengths are one-dimensional. Flatten it"),
    ("a.npy", np.array(1), "has shape (), lengths are one-dimensional. Flatten it"),
    ("a.npy", np.empty(0, np.int32), NONE),
    ("a.npy", np.array([3, 0]), f"index 1: length 0 {SMALL}"),
    ("a.npy", np.array([3, -2]), f"index 1: length -2 {SMALL}"),
    ("a.npy", np.array([1, 2**31]), f"index 1: length 2147483648 {LARGE}"),
    ("a.npy", np.array([2**63], np.uint64), f"index 0: length 9223372036854775808 {LARGE}"),
    ("a.txt", "# none\n\n", NONE),
    ("a.txt", "1\n\nx\n", f"line 3: 'x' {ONE_A_LINE}"),
    ("a.txt", "1\n2.0\n", f"line 2: '2.0' {ONE_A_LINE}"),
    ("a.txt", "nan", f"line 1: 'nan' {ONE_A_LINE}"),
    ("a.txt", "1 2\n", f"line 1: '1 2' {ONE_A_LINE}"),
    ("a.txt", "1_000\n", f"line 1: '1_000' {ONE_A_LINE}"),
    ("a.txt", "# h\n0\n", f"line 2: length 0 {SMALL}"),
    ("a.txt", "1\n" + 30 * "9", f"line 2: length {30 * '9'} {LARGE}"),
    ("a.txt", b"1\n\xff\n", f"line 2: '�' {ONE_A_LINE}"),
    ("a.jsonl", "\n\n", NONE),
    (
        *("a.jsonl", '{"length": 3}\n{"length": \n'),
        f"line 2: is not JSON: Expecting value at column 11; {AN_OBJECT}",
    ),
    ("a.jsonl", [[1, 2]], f"line 1: holds [1, 2]; {AN_OBJECT}"),
    (
        *("a.jsonl", '{"length": 3}\n{"length": 3, "length": 4}\n'),
        "line 2: field 'length' is written twice. Remove one",
    ),
    (
        *("a.json", '[{"length": 3},\n {"length": 5, "of": {"a": 1, "a": 2}}]'),
        "record 1: field 'a' is written twice. Remove one",
    ),
    (
        *("a.jsonl", b'{"length": 3}\n{"x": "\xff"}\n'),
        "line 2: is not UTF-8 (byte 8: invalid start byte); convert the file",
    ),
    ("a.jsonl", [{"a": 1, "b": 2}], f"line 1: {FIELDS} 'a', 'b': name one with --field"),
    ("a.jsonl", [{"length": 1}, {"b": 2}], "line 2: no field 'length'; it has 'b'"),
    ("a.jsonl", [{"length": None}], f"line 1: field 'length' is None; {WANTS}"),
    ("a.jsonl", [{"length": 1}, {"length": np.nan}], f"line 2: field 'length' is nan; {WANTS}"),
    ("a.jsonl", [{"length": 3.0}], f"line 1: field 'length' is 3.0; {WANTS}"),
    ("a.jsonl", [{"length": True}], f"line 1: field 'length' is True; {WANTS}"),
    (
        *("a.jsonl", [{"length": 1}, {"length": "2"}]),
        (
            "line 2: field 'length' holds '2', in the records before an integer. "
            "Use one type in all records"
        ),
    ),
    ("a.jsonl", [{"length": 1}, {"length": 0}], f"line 2: length 0 {SMALL}"),
    ("a.jsonl", [{"length": 10**30}], f"line 1: length {10**30} {LARGE}"),
    ("a.jsonl", [{"ids": [1]}, {"ids": []}], f"line 2: length 0 {SMALL}"),
    (
        *("a.jsonl", [{"ids": [[1], [2]]}]),
        "line 1: field 'ids' holds a list of lists; write one sequence a record",
    ),
    ("a.jsonl", [{"length": [812, 96]}], f"line 1: field 'length' {A_COLUMN}"),
    ("a.jsonl", [{"text": "x"}], f"field 'text' {TEXT}"),
    ("a.csv", "5\n7\n", UNNAMED),
    ("a.csv", "\n", UNNAMED),
    ("a.csv", "length\n", NONE),
    ("a.csv", "a,a\n1,2\n", "line 1: column 'a' is there twice. Rename one"),
    ("a.csv", "a\0b,c\n1,2\n", "is not CSV: line 1 has a NUL byte. Write it again"),
    ("a.csv", "a,length\n1,2\n3\n", "line 3: has 1 values for 2 columns. Quote the texts"),
    (
        *("a.tsv", "a\tlength\nx\t2\ny\t\n"),
        (
            "line 3: field 'length' holds '', in the records before an integer. "
            "Use one type in all records"
        ),
    ),
    (
        *("a.csv", "length;id\n1;2\n"),
        "line 1: 'length;id' is one column. Separate columns by commas, or by tabs in a .tsv",
    ),
    ("a.csv", "length\n5.0\n", f"line 2: field 'length' is 5.0; {WANTS}"),
    ("a.csv", "id,length\n1,\n", f"line 2: field 'length' is None; {WANTS}"),
    ("a.csv", "length\n5\n" + 30 * "9", f"line 3: length {30 * '9'} {LARGE}"),
    ("a.csv", "length\n0\n", f"line 2: length 0 {SMALL}"),
    ("a.csv", b"length\n\xff\n", "is not UTF-8: invalid start byte. Convert the file"),
    ("a.csv", "text\nx\n", f"field 'text' {TEXT}"),
    (
        *("a.csv", 'length,text\n1,"x'),
        "line 2: is not CSV: unexpected end of data. Write it again",
    ),
    (
        *("a.jsonl.gz", "{}"),
        (
            "is not a whole gzip file: Not a gzipped file (b'{}'), after line 0. "
            "Write or download it again"
        ),
    ),
    (
        *("a.jsonl.gz", gzip.compress(b'{"length": 3}\n')[:-9]),
        "is a truncated gzip file, it ends after line 1; copy it again",
    ),
    (
        *("a.parquet", 20 * "x"),
        (
            "is not a whole .parquet file: Parquet magic bytes not found in footer. "
            "Either the file is corrupted or this is not a parquet file. Write or download it again"
        ),
    ),
    ("a.parquet", {"a": [1]}, f"schema: {FIELDS} 'a': name one with --field"),
    ("a.parquet", {"length": [1.0]}, f"field 'length' holds double; {WANTS}"),
    ("a.parquet", {"num_tokens": [[812, 96]]}, f"field 'num_tokens' {A_COLUMN}"),
    ("a.parquet", {"length": [1, None]}, "row 1: is null; remove the row"),
    ("a.parquet", {"ids": [[1], None]}, "row 1: is null; remove the row"),
    ("a.parquet", {"length": [1, 0]}, f"row 1: length 0 {SMALL}"),
    (
        *("a.parquet", {"ids": [[[1]]]}),
        (
            "field 'ids' holds list<element: list<element: int64>>, a list of lists; "
            "write one sequence a row"
        ),
    ),
    ("a.parquet", {"length": lambda: pa.array([], pa.int32())}, NONE),
    (
        *("a.parquet", {"x": lambda: pa.array(["y", b"\xff"], pa.binary()).view(pa.string())}),
        "row 1: is not UTF-8 (byte 1: invalid start byte); fix the row",
    ),
    ("a.parquet", {"text": ["x"]}, f"field 'text' {TEXT}"),
]


@pytest.mark.parametrize(("name", "content", "message"), CASES, ids=range(len(CASES)))
def test_errors_are_one_line_with_a_fix(
    tmp_path: Path, name: str, content: Any, message: str
) -> None:
    path = write_source(tmp_path / name, content)
    options = {"field": "x", "tokenizer": 4} if "not UTF-8 (byte 1" in message else {}
    assert complaint(path, **options) == f"{name}: {message}"


def test_sources_that_are_not_there(tmp_path: Path) -> None:
    missing = "a.npy: no such file or folder. Check the path"
    assert complaint(tmp_path / "a.npy") == missing
    assert complaint(tmp_path / "*.idx") == "*.idx: matches no file. Change the pattern"
    file_of(tmp_path / "a.md", "one text")
    assert complaint(tmp_path) == f"{tmp_path.name}: a folder {TEXT}"


def test_options_are_checked(tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.txt", "1")
    assert complaint() == "no source of lengths was given. Name at least one"
    assert complaint(path, field="x") == (
        "--field x: no source has fields. Name it for .jsonl, .csv or .parquet"
    )
    assert complaint(path, glob="*.md") == "--glob *.md: no source is a folder. Leave it out"
    counted = write_jsonl(tmp_path / "a.jsonl", [{"num_tokens": 1, "text": "one"}])
    for source in (path, counted):
        assert complaint(source, tokenizer=4.0) == (
            "--tokenizer 4: no text of the sources is read. Name its field with --field, or "
            "leave --tokenizer out"
        )
    for rate in (0, -1.0, 4000.0, float("nan"), float("inf")):
        with pytest.raises(LengthsError, match=f"--tokenizer {rate:g}: bytes per token must be"):
            SourceOptions(tokenizer=rate)


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
