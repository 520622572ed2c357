"""Histograms of lengths: rejected texts, and lengths that have a given histogram."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqplan.costs.lengths import (
    Bucket,
    LengthsError,
    longest,
    parse_histogram,
    representative,
    summarise,
)

DATA = Path(__file__).parents[3] / "examples" / "data" / "code.npy"


@st.composite
def some_buckets(draw: st.DrawFn) -> list[Bucket]:
    """Narrow and wide ones, with gaps between them; some hold nothing."""
    buckets, over = [], 0
    for _ in range(draw(st.integers(1, 4))):
        over += draw(st.integers(0, 20) | st.integers(0, 2**27))
        up_to = over + draw(st.integers(1, 60) | st.integers(1, 2**27))
        sequences = draw(st.integers(0, 200))
        tokens = draw(st.integers(sequences * (over + 1), sequences * up_to))
        buckets.append(Bucket(over, up_to, sequences, tokens))
        over = up_to
    return buckets


@settings(max_examples=80)
@given(some_buckets())
def test_lengths_fit_their_buckets(buckets: list[Bucket]) -> None:
    lengths = representative(buckets)
    assert lengths.dtype == np.int64
    assert len(lengths) == sum(bucket.sequences for bucket in buckets)
    assert (np.diff(lengths) >= 0).all()
    for bucket in buckets:
        held = lengths[(lengths > bucket.over) & (lengths <= bucket.up_to)]
        assert (len(held), int(held.sum())) == (bucket.sequences, bucket.tokens)
    assert longest(buckets) == lengths.max(initial=0)


def test_lengths_spread_over_a_bucket() -> None:
    lengths = representative(parse_histogram(b"[[10, 20, 10]]", "body"))
    assert lengths.tolist() == [*range(11, 16), *range(16, 21)]
    assert representative([Bucket(0, 8, 4, 8)]).tolist() == [1, 1, 3, 3]
    assert representative([Bucket(0, 8, 4, 28)]).tolist() == [6, 6, 8, 8]


def test_the_histogram_of_a_data_set_comes_back() -> None:
    buckets = summarise(np.load(DATA)).buckets
    rows = [[bucket.over, bucket.up_to, bucket.sequences, bucket.tokens] for bucket in buckets]
    parsed = parse_histogram(json.dumps(rows).encode(), "body")
    assert parsed == buckets
    assert summarise(representative(parsed)).buckets == buckets


def test_many_sequences_of_any_length_stay_within_64_bits() -> None:
    bucket = Bucket(0, 2**31 - 1, 1_000_003, 1_000_003 * 2**30)
    assert int(representative([bucket]).sum()) == bucket.tokens


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[0,8,3]", "body: is not JSON: "),
        ("\xff", "body: is not JSON: "),
        ('{"a":1}', "body: is {'a': 1}, not a list of [over, up to, sequences]"),
        ("[]", "body: holds no sequences"),
        ("[[0,8,0]]", "body: holds no sequences"),
        ("[[0,8,1],[8,9]]", "body[1]: is [8, 9], not [over, up to, sequences] or"),
        ("[[0,8,1],[8,9,1.5]]", "body[1][2]: is 1.5, not an integer"),
        ("[[0,8,1],[8,true,1]]", "body[1][1]: is True, not an integer"),
        ("[[-1,8,1]]", "body[0][0]: -1 is below 0, where the bucket before ends"),
        ("[[0,8,1],[7,9,1]]", "body[1][0]: 7 is below 8, where the bucket before ends"),
        ("[[0,8,1],[8,8,1]]", "body[1][1]: 8 is not in 9 to 2147483647"),
        ("[[0,2147483648,1]]", "body[0][1]: 2147483648 is not in 1 to 2147483647"),
        ("[[0,8,-3]]", "body[0][2]: -3 is not a number of sequences"),
        ("[[1,8,3,5]]", "body[0][3]: 5 is not in 6 to 24, what 3 sequences of 2 to 8 tokens"),
    ],
)
def test_malformed_histograms_are_rejected(text: str, message: str) -> None:
    with pytest.raises(LengthsError) as raised:
        parse_histogram(text.encode("latin-1"), "body")
    assert str(raised.value).startswith(message)
