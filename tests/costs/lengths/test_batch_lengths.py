"""Batches that a trainer has drawn are a source of lengths."""

import gzip
import os
from pathlib import Path

import pytest

from seqplan import read_lengths
from seqplan.costs.lengths.sources.error import LengthsError
from seqplan.planner.batches.batches_file import read_batches

FIRST = '{"step":0,"ids":[5,9],"lengths":[812,96]}\n\n'


def test_sequences_of_all_batches_are_read(tmp_path: Path) -> None:
    path = tmp_path / "batches.jsonl"
    path.write_text(FIRST + '{"lengths":[7],"loss_tokens":3}\n')
    lengths = read_lengths(path)
    assert lengths.values.tolist() == [812, 96, 7]
    assert lengths.sources[0].notes == ("lengths of batches, one for each sequence of a step",)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 3: is not a whole JSON object"),
        ('{"ids":[3]}', "line 3: lengths: is missing"),
        ('{"lengths":[3,0]}', r"line 3: lengths\[1\]: must be an integer ≥ 1: 0"),
        (
            '{"lengths":[2147483648]}',
            r"line 3: lengths\[0\]: length 2147483648 is above the largest",
        ),
        ('{"lengths":[true]}', r"line 3: lengths\[0\]: must be an integer ≥ 1: true"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "batches.jsonl"
    path.write_text(FIRST + line)
    with pytest.raises(LengthsError, match=message):
        read_lengths(path)


def test_a_damaged_first_line_is_one_of_batches(tmp_path: Path) -> None:
    path = tmp_path / "batches.jsonl"
    path.write_text('{"step":0,"lengths":[3,\n')
    with pytest.raises(LengthsError, match="line 1: is not a whole JSON object"):
        read_lengths(path)


def test_steps_with_other_fields_are_batches(tmp_path: Path) -> None:
    """The planner rejects such a field by name; without this rule its list is read as ids."""
    path = tmp_path / "batches.jsonl"
    path.write_text('{"step":0,"lengths":[3,4],"epoch":1}\n')
    assert read_lengths(path).values.tolist() == [3, 4]


def test_a_mark_of_utf8_is_no_part_of_the_first_batch(tmp_path: Path) -> None:
    path = tmp_path / "batches.jsonl"
    path.write_text("\ufeff" + FIRST)
    assert read_lengths(path).values.tolist() == [812, 96]
    (batch,) = read_batches(path, 1000)
    assert batch.lengths == (812, 96)


def test_compressed_batches_are_named(tmp_path: Path) -> None:
    path = tmp_path / "batches.jsonl.gz"
    path.write_bytes(gzip.compress(FIRST.encode()))
    with pytest.raises(LengthsError, match=r"line 1: is a batch. Give batches as .jsonl"):
        read_lengths(path)


def test_a_pipe_is_rejected_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(LengthsError, match=r"pipe.jsonl: is no regular file. Copy it to one"):
        read_lengths(tmp_path / "pipe.jsonl")
