"""Samples by id and a rank's share of them: right tokens, right labels, clear errors."""

import functools
import operator
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_builder import plan_of

from seqplan import Scheme, rank_view
from seqplan.plans.plan import MicroBatch, PlannedPipeline
from seqplan.plans.views.micro_batch_view import MicroBatchView
from seqplan.runtime.data.megatron import MegatronTokens
from seqplan.runtime.data.tokens import IndexedTokens, SeededTokens, TokenData, Tokens, load_share
from seqplan.runtime.errors import DataError


def views(scheme: Scheme, ids: list[int], lengths: list[int]) -> list[MicroBatchView]:
    """One micro-batch as each rank of its only pipeline sees it."""
    padded = scheme.pad_micro_batch(lengths)
    batch = MicroBatch(tuple(range(len(lengths))), sum(lengths), padded, 1.0)
    pipeline = PlannedPipeline(scheme, tuple(range(scheme.gpus)), (batch,), 1.0)
    plan = plan_of((pipeline,), tuple(lengths), 1.0, gap=0.0, ids=tuple(ids))
    return [rank_view(plan, rank).pipelines[0].micro_batches[0] for rank in range(scheme.gpus)]


class Watched:
    """Data that remembers how many tokens were read."""

    def __init__(self, data: TokenData) -> None:
        self.data = data
        self.read = 0

    def length(self, id: int) -> int:
        return self.data.length(id)

    def tokens(self, id: int, start: int, stop: int) -> Tokens:
        assert 0 <= start < stop <= self.data.length(id)
        self.read += stop - start
        return self.data.tokens(id, start, stop)


@given(
    st.builds(Scheme, st.just(1), st.just(1), st.integers(1, 4), st.integers(1, 4)),
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.integers(0, 5),
)
def test_shares_hold_every_token_with_its_label(
    scheme: Scheme, lengths: list[int], surplus: int
) -> None:
    """Against labels made of the whole sequences; a longer sample is truncated."""
    random = np.random.default_rng(1)
    samples = {7 * n: random.integers(0, 1000, size + surplus) for n, size in enumerate(lengths)}
    counts = [np.zeros(size, dtype=np.int64) for size in lengths]
    for view in views(scheme, list(samples), lengths):
        data = Watched(IndexedTokens(samples))
        tokens, labels, positions = load_share(data, view, step=3)
        assert data.read <= view.local_tokens + 2 * len(lengths)
        for array in (tokens, labels, positions):
            assert (array.dtype, array.shape) == (np.int64, (view.local_tokens,))
        at = 0
        for share in view.sequences:
            whole = samples[share.id][: share.length]
            following = np.append(whole[1:], -100)
            for start, stop in share.ranges:
                end = at + stop - start
                np.testing.assert_array_equal(tokens[at:end], whole[start:stop])
                np.testing.assert_array_equal(labels[at:end], following[start:stop])
                np.testing.assert_array_equal(positions[at:end], np.arange(start, stop))
                counts[share.position][start:stop] += 1
                at = end
        assert at == view.local_tokens
    assert all((times == 1).all() for times in counts)


def test_a_rank_without_tokens_reads_nothing() -> None:
    empty = next(view for view in views(Scheme(ring=4), [0], [1]) if not view.local_tokens)
    assert [len(array) for array in load_share(IndexedTokens([]), empty)] == [0, 0, 0]


ONE = views(Scheme(), [5], [4])[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            IndexedTokens({5: [1, 2, 3]}),
            "sample 5 of step 9: has 3 tokens, the plan requires 4; plan with the lengths",
        ),
        (
            IndexedTokens([[1, 2, 3, 4]] * 5),
            "sample 5 of step 9: the data has no such id, it has 5",
        ),
        (IndexedTokens({5: []}), "sample 5 of step 9: has 0 tokens, the plan requires 4"),
        (
            IndexedTokens({5: "text"}),
            "sample 5 of step 9: must be a flat list of token ids, not str",
        ),
        (IndexedTokens({5: [1.5, 2]}), "must be a flat list of token ids, not list of float64"),
        (IndexedTokens({5: [[1, 2]]}), "not list of int64 in 2 dimensions"),
        (
            IndexedTokens({5: {"a": [1]}}),
            "is a mapping; name the field of its tokens (there are a)",
        ),
        (IndexedTokens({5: {"a": [1], "b": 2}}, "c"), "has no field 'c' (there are a, b)"),
        (IndexedTokens({5: [1]}, "c"), "has no field 'c'"),
    ],
)
def test_data_that_does_not_fit_the_plan(data: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        load_share(data, ONE, step=9)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [None, 7, "tokens.npy"])
def test_data_without_samples_is_rejected(data: Any) -> None:
    with pytest.raises(TypeError, match=rf"^data: {data!r}\. Give samples by id, such as a list"):
        IndexedTokens(data)


def test_data_that_breaks_its_word() -> None:
    class Short(IndexedTokens):
        def length(self, id: int) -> int:
            return 9

    with pytest.raises(DataError, match="sample 5: gave 2 of the 4 tokens from 0 on, although it"):
        load_share(Short({5: [1, 2]}), ONE)


def test_fields_lists_and_torch_tensors() -> None:
    import torch

    for data in (
        IndexedTokens({5: {"input_ids": [1, 2, 3, 4, 5]}}, "input_ids"),
        IndexedTokens([[]] * 5 + [np.array([1, 2, 3, 4], dtype=np.uint16)]),
        IndexedTokens({5: torch.tensor([1, 2, 3, 4])}),
    ):
        tokens, labels, _ = load_share(data, ONE)
        assert tokens.tolist() == [1, 2, 3, 4]
        assert labels.tolist() == [2, 3, 4, -100]


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.integers(0, 40)
)
def test_seeded_tokens_are_the_same_by_any_range(seed: int, id: int, start: int, size: int) -> None:
    data = SeededTokens(50_257, seed)
    whole = data.tokens(id, start, start + size)
    assert (whole.dtype, len(whole)) == (np.int64, size)
    assert [int(data.tokens(id, p, p + 1)[0]) for p in range(start, start + size)] == whole.tolist()
    if size:
        assert 0 <= whole.min() <= whole.max() < 50_257


def test_seeded_tokens_are_fixed_for_ever() -> None:
    assert SeededTokens(50_257, 1).tokens(2, 0, 6).tolist() == SEEDED
    data = SeededTokens(50_257, 1)
    others = [data.tokens(3, 0, 6), data.tokens(2, 4, 10), SeededTokens(50_257, 2).tokens(2, 0, 6)]
    assert all(other.tolist() != SEEDED for other in others)
    counts = np.bincount(SeededTokens(10, 0).tokens(0, 0, 100_000), minlength=10)
    assert abs(counts - 10_000).max() < 500  # five standard deviations


SEEDED = [6870, 18687, 12691, 62, 33443, 38516]


def test_bad_seeds_are_rejected() -> None:
    with pytest.raises(ValueError, match="vocab must be positive, not 0"):
        SeededTokens(0, 1)
    with pytest.raises(ValueError, match=r"seed must be in 0 … 2\*\*64 − 1, not -1"):
        SeededTokens(5, -1)


CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


def write_megatron(
    stem: Path, documents: list[list[list[int]]], code: int = 4, modes: bool = False
) -> None:
    """Documents of sequences of tokens; in the .bin the sequences lie in reverse order."""
    sequences = [sequence for document in documents for sequence in document]
    offsets: list[int] = []
    stored = b""
    for sequence in reversed(sequences):
        offsets.insert(0, len(stored))
        stored += np.array(sequence, dtype=CODES.get(code, "<f4")).tobytes()
    starts = np.cumsum([0] + [len(document) for document in documents])
    index = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(sequences), len(starts))
    index += np.array([len(sequence) for sequence in sequences], dtype="<i4").tobytes()
    index += np.array(offsets, dtype="<i8").tobytes() + starts.astype("<i8").tobytes()
    index += bytes(len(sequences) if modes else 0)
    Path(f"{stem}.idx").write_bytes(index)
    Path(f"{stem}.bin").write_bytes(stored)


DOCUMENTS = [[[1, 2, 3]], [[4], [], [5, 6], [7, 8, 9]], [[]], [[10, 11]]]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("modes", [False, True])
def test_megatron_documents(tmp_path: Path, code: int, modes: bool) -> None:
    write_megatron(tmp_path / "some.data", DOCUMENTS, code, modes)
    for name in ("some.data", "some.data.idx", "some.data.bin"):
        data = MegatronTokens(tmp_path / name)
        for id, document in enumerate(DOCUMENTS):
            flat = functools.reduce(operator.iadd, document, [])
            assert data.length(id) == len(flat)
            for start in range(len(flat)):
                for stop in range(start, len(flat) + 1):
                    read = data.tokens(id, start, stop)
                    assert (read.dtype, read.tolist()) == (np.int64, flat[start:stop])


def test_megatron_ids_outside_the_data(tmp_path: Path) -> None:
    write_megatron(tmp_path / "data", DOCUMENTS)
    with pytest.raises(DataError, match=r"sample 5 of step 2: the data has no .*has 4 documents"):
        load_share(MegatronTokens(tmp_path / "data"), ONE, step=2)


def test_megatron_files_that_are_damaged(tmp_path: Path) -> None:
    stem, idx, bin = tmp_path / "d", tmp_path / "d.idx", tmp_path / "d.bin"

    def rejected(message: str) -> None:
        with pytest.raises(DataError, match=message) as caught:
            MegatronTokens(stem).tokens(3, 0, 2)
        assert "\n" not in str(caught.value)

    rejected(r"d\.idx: No such file")
    write_megatron(stem, DOCUMENTS)
    good = idx.read_bytes()
    bin.unlink()
    rejected(r"d\.bin: No such file")
    bin.write_bytes(b"")
    rejected(r"d\.bin: has 0 bytes, the index requires byte 8; it is cut off")
    for content in (b"", b"MMIDIDX", b"PK" + good[2:]):
        idx.write_bytes(content)
        rejected(r"d\.idx: is not a Megatron index")
    idx.write_bytes(good[:-1])
    rejected(r"d\.idx: has \d+ bytes, its header requires \d+")
    idx.write_bytes(good[:9] + b"\2" + good[10:])
    rejected(r"d\.idx: is of version 2")
    idx.write_bytes(good[:17] + b"\7" + good[18:])
    rejected(r"d\.idx: has dtype code 7; tokens are integers")
    idx.write_bytes(good[:-8] + struct.pack("<q", 99))
    rejected(r"d\.idx: its document starts are damaged")
