"""Megatron indices: documents are summed, and damaged files are rejected."""

import struct
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from length_files import LARGE, SMALL, complaint, file_of, write_idx

from seqplan.costs.lengths import read_lengths
from seqplan.costs.lengths.sources import megatron as megatron_source

documents_of_sequences = st.lists(
    st.lists(st.integers(0, 1 << 20), min_size=1, max_size=5).filter(any), min_size=1, max_size=30
)


@settings(max_examples=27, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents_of_sequences, st.booleans())
def test_megatron_documents(tmp_path: Path, documents: list[list[int]], modes: bool) -> None:
    path = tmp_path / "a.idx"
    starts = [0, *accumulate(map(len, documents))]
    write_idx(path, [n for document in documents for n in document], starts, modes=modes)
    assert read_lengths([path]).values.tolist() == [sum(document) for document in documents]


def test_megatron_documents_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron_source, "CHUNK", 7)
    sequences = [*range(1, 101)]
    starts = sorted({0, 100, *range(0, 100, 3)})
    write_idx(tmp_path / "a.idx", sequences, starts)
    assert read_lengths([tmp_path / "a.idx"]).values.tolist() == [
        sum(sequences[a:b]) for a, b in pairwise(starts)
    ]


def header(*fields: int) -> bytes:
    return b"MMIDIDX\0\0" + struct.pack("<QBQQ", *fields)


DAMAGED = "the index is damaged, build it again"
IDX_CASES: list[tuple[bytes | tuple[list[int], list[int]], str]] = [
    (
        100 * b"x",
        (
            "is not a Megatron index (it does not begin with MMIDIDX); "
            "give the .idx that was written next to the .bin"
        ),
    ),
    (header(2, 4, 0, 1), "is a Megatron index of version 2; 1 is understood"),
    (header(1, 9, 0, 1), "has dtype code 9; Megatron writes 1 to 8"),
    (([], [0]), "holds no sequences. Name a source with sequences"),
    (
        header(1, 4, 2**63, 2**62),
        (
            "is truncated: 34 bytes, but its header (9223372036854775808 sequences, "
            "4611686018427387903 documents) requires 147573952589676412962 or, with modes, "
            "156797324626531188770"
        ),
    ),
    (
        header(1, 4, 1, 2) + bytes(30),
        (
            "is damaged: 64 bytes, but its header (1 sequences, 1 documents) requires 62 "
            "or, with modes, 63"
        ),
    ),
    (([5, 6], [0, 1, 1, 2]), "document 1: has no sequences; remove it from the data set"),
    (([5, 0], [0, 1, 2]), f"document 1: length 0 {SMALL}"),
    (([5, 6, 7], [0, 2, 1, 3]), f"document 1: starts after the next one; {DAMAGED}"),
    (([5, 6], [0, 9, 2]), f"document starts point outside its 2 sequences; {DAMAGED}"),
    (([5, 6], [0, 1]), f"document starts run from 0 to 1, not from 0 to 2 sequences; {DAMAGED}"),
    (([5, -6, 9], [0, 3]), f"sequence 1: length -6 is negative; {DAMAGED}"),
    (([5, 2**31 - 1, 1], [0, 1, 3]), f"document 1: length 2147483648 {LARGE}"),
]


@pytest.mark.parametrize(("content", "message"), IDX_CASES, ids=[m for _, m in IDX_CASES])
def test_a_damaged_megatron_index_is_rejected(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "a.idx"
    file_of(path, content) if isinstance(content, bytes) else write_idx(path, *content)
    assert complaint(path) == f"a.idx: {message}"


def test_a_megatron_index_cut_anywhere_is_rejected(tmp_path: Path) -> None:
    write_idx(tmp_path / "whole.idx", [5, 6, 7], [0, 1, 3])
    whole = (tmp_path / "whole.idx").read_bytes()
    for size in range(1, len(whole)):
        message = complaint(file_of(tmp_path / "a.idx", whole[:size]))
        assert message.startswith(f"a.idx: is truncated: {size} bytes")
