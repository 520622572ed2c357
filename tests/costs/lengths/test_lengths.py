"""Every kind of source gives back the lengths that were put in."""

import csv
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from length_files import write_idx, write_jsonl, write_tokenizer

from seqplan.costs.lengths import MAX_LENGTH, SourceOptions, read_lengths, save_lengths

some_lengths = st.lists(st.integers(1, MAX_LENGTH), min_size=1, max_size=50)
short_lengths = st.lists(st.integers(1, 9), min_size=1, max_size=50)
in_one_folder = settings(
    max_examples=27, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read(*sources: Path | str, **options: Any) -> list[int]:
    return read_lengths(sources, SourceOptions(**options)).values.tolist()


@in_one_folder
@given(some_lengths, st.sampled_from(["<i8", ">i8", "<u4", "<i4", "<u8"]))
def test_npy(tmp_path: Path, lengths: list[int], dtype: str) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array(lengths, dtype))
    assert read(path) == lengths


@in_one_folder
@given(some_lengths)
def test_saved_lengths_are_read_back(tmp_path: Path, lengths: list[int]) -> None:
    path = tmp_path / "saved.npy"
    save_lengths(path, np.array(lengths, np.int64))
    assert np.load(path).dtype == np.uint32
    assert read(path) == read_lengths(str(path)).values.tolist() == lengths


@in_one_folder
@given(some_lengths, st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_csv(tmp_path: Path, lengths: list[int], texts: list[str]) -> None:
    for suffix, dialect in ((".csv", "excel"), (".tsv", "excel-tab")):
        path = tmp_path / f"a{suffix}"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, dialect)
            writer.writerow(["text", "length"])
            writer.writerows(zip_longest(texts, lengths, fillvalue=1))
        assert read(path) == lengths + [1] * (len(texts) - len(lengths))


def test_another_column_of_csv_may_hold_integers_and_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,length\n0,5\nfour,6\n,7\n")
    assert read(path) == [5, 6, 7]
    path.write_text("text,id\n12,1\nfour,2\n")
    assert read(path, tokenizer=1.0) == read(path, tokenizer=1.0, field="text") == [2, 4]


def test_texts_of_csv_may_be_long(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,id\n"' + 100_000 * 'four ""' + '",1\nfour,2\n')
    assert read(path, tokenizer=4.0) == [150_000, 1]


@in_one_folder
@given(some_lengths, st.randoms(use_true_random=False))
def test_txt(tmp_path: Path, lengths: list[int], chance: Any) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{n}\n" for n in lengths).removesuffix("\n"))
    assert read(path) == lengths
    fillers = ["", "# a comment\n", "\n", "  \r\n"]
    lines = [chance.choice(fillers) + f" {n} " + chance.choice(["", "# ö"]) for n in lengths]
    path.write_text("\ufeff" + "\n".join(lines), "utf-8")
    assert read(path) == lengths


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@in_one_folder
@given(short_lengths)
def test_jsonl(tmp_path: Path, name: str, lengths: list[int]) -> None:
    path = tmp_path / name
    assert read(write_jsonl(path, [{"n": n} for n in lengths]), field="n") == lengths
    assert read(write_jsonl(path, [{"ids": [7] * n} for n in lengths])) == lengths
    write_jsonl(path, [{"tokens": ["ä"] * n} for n in lengths])
    assert read(path) == lengths
    write_jsonl(path, [{"text": "äb" * n} for n in lengths])
    assert read(path, tokenizer=3) == lengths
    assert read(path, tokenizer=2.5) == [-(-6 * n // 5) for n in lengths]


@pytest.mark.parametrize("blank", ["", " " * 100, "\n" * 100])
def test_a_list_of_json_may_begin_with_blanks(tmp_path: Path, blank: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(blank + '[{"length": 4},\n{"length": 5}]', "utf-8-sig")
    assert read(path) == [4, 5]


def test_jsonl_blank_lines_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\ufeff{"length": 3}\n\n  \n{"length": 4}', "utf-8")
    assert read(path) == [3, 4]


COLUMNS: dict[str, tuple[Callable[[int], object], Any]] = {
    "int32": (lambda n: n, pa.int32()),
    "uint64": (lambda n: n, pa.uint64()),
    "list": (lambda n: list(range(n)), pa.list_(pa.int32())),
    "large_list": (lambda n: list(range(n)), pa.large_list(pa.int64())),
    "string": (lambda n: "äb" * n, pa.string()),
    "large_string": (lambda n: "äb" * n, pa.large_string()),
    "dictionary": (lambda n: "äb" * n, pa.dictionary(pa.int32(), pa.string())),
}


@pytest.mark.parametrize("kind", sorted(COLUMNS))
@in_one_folder
@given(short_lengths)
def test_columns(tmp_path: Path, kind: str, lengths: list[int]) -> None:
    make, dtype = COLUMNS[kind]
    table = pa.table({"x": pa.array([make(n) for n in lengths], dtype), "y": lengths})
    options = {"field": "x", "tokenizer": 3 if type(make(1)) is str else None}
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    assert read(tmp_path / "a.parquet", **options) == lengths
    for opener in (pa.ipc.new_file, pa.ipc.new_stream):
        with opener(str(tmp_path / "a.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=20)
        assert read(tmp_path / "a.arrow", **options) == lengths


def test_folder_of_texts(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    for name, words in [("b.md", 2), ("a.txt", 1), ("z/a.txt", 3), ("c/d/e.txt", 12)]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("wörd " * words, "utf-8")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("hidden")
    (folder / ".hidden").write_text("hidden")
    assert read(folder, tokenizer=write_tokenizer(tmp_path / "tokenizer.json")) == [1, 2, 12, 3]
    assert read(folder, tokenizer=6) == [1, 2, 12, 3]
    assert read(folder, tokenizer=6, glob="*.txt") == [1, 12, 3]
    assert read(folder, tokenizer=6, glob="**/*.md") == [2]
    assert read(folder, tokenizer=6, glob="c/*") == [12]


def test_tokenizer_on_records(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    texts = ["one", "one two", "a b c d e", "half a \ud83d pair"]
    path = write_jsonl(tmp_path / "a.jsonl.gz", [{"text": text} for text in texts])
    assert read(path, tokenizer=tokenizer) == [1, 2, 5, 4]
    pq.write_table(pa.table({"text": texts[:3]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", tokenizer=tokenizer) == [1, 2, 5]


def test_batches_of_texts_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from seqplan.costs.lengths.sources import token_count

    monkeypatch.setattr(token_count, "BATCH_TEXTS", 3)
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x" * n} for n in range(1, 12)])
    assert read(path, tokenizer=1) == [*range(1, 12)]


def test_sources_are_joined_with_their_counts_and_notes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("5\n6\n")
    write_jsonl(tmp_path / "b.jsonl", [{"id": 1, "text": "abcd", "num_tokens": 9}])
    write_jsonl(tmp_path / "c.jsonl", [{"text": "abcdefgh"}])
    for n in (2, 1):
        write_idx(tmp_path / f"shard-{n}.idx", [n], [0, 1])
    lengths = read_lengths(
        [tmp_path / "a.txt", str(tmp_path / "[bc].jsonl"), tmp_path / "shard-*.idx"],
        SourceOptions(tokenizer=4.0),
    )
    assert lengths.values.dtype == np.int64
    assert lengths.values.tolist() == [5, 6, 9, 2, 1, 2]
    assert lengths.tokens == 25
    assert [(Path(s.path).name, s.sequences, s.tokens, s.notes) for s in lengths.sources] == [
        ("a.txt", 2, 11, ()),
        ("b.jsonl", 1, 9, ("an integer in field 'num_tokens'",)),
        ("c.jsonl", 1, 2, ("a text in field 'text'", "estimated from bytes at 4 bytes per token")),
        ("shard-1.idx", 1, 1, ()),
        ("shard-2.idx", 1, 2, ()),
    ]


def test_fields_are_found_in_order(tmp_path: Path) -> None:
    record = {"text": "x", "ids": [1], "tokens": [1] * 2, "input_ids": [1] * 3, "num_tokens": 4}
    path = tmp_path / "a.jsonl"
    for length, dropped in [(4, "num_tokens"), (3, "input_ids"), (2, "tokens"), (1, "ids")]:
        assert read(write_jsonl(path, [record])) == [length]
        del record[dropped]


def test_a_name_with_pattern_characters_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("1\n")
    assert read(tmp_path / "a[1].txt") == [1]


def test_growth_and_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from seqplan.costs.lengths.sources import npy as npy_source
    from seqplan.costs.lengths.sources import txt as txt_source

    monkeypatch.setattr(npy_source, "CHUNK", 40_000)
    monkeypatch.setattr(txt_source, "CHUNK_BYTES", 100_000)
    lengths = np.arange(1, 100_001)
    np.save(tmp_path / "a.npy", lengths)
    np.savetxt(tmp_path / "b.txt", lengths, fmt="%d")
    progress: list[tuple[int, int | None]] = []
    joined = read_lengths(
        [tmp_path / "a.npy", tmp_path / "b.txt"], progress=lambda *a: progress.append(a)
    )
    assert np.array_equal(joined.values, np.concatenate([lengths, lengths]))
    assert progress[:3] == [(40_000, 100_000), (80_000, 100_000), (100_000, 100_000)]
    assert progress[-1] == (200_000, None)
