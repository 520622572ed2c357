"""The longest of the lengths that stand for a histogram, without making them."""

from hypothesis import given
from hypothesis import strategies as st

from seqplan.costs.lengths import Bucket, longest, representative


@st.composite
def _buckets(draw: st.DrawFn) -> list[Bucket]:
    buckets, over = [], 0
    for _ in range(draw(st.integers(1, 4))):
        over += draw(st.integers(0, 20))
        up_to = over + draw(st.integers(1, 60))
        n = draw(st.integers(0, 40))
        buckets.append(Bucket(over, up_to, n, draw(st.integers(n * (over + 1), n * up_to))))
        over = up_to
    return buckets


@given(_buckets())
def test_it_is_that_of_the_array(buckets: list[Bucket]) -> None:
    lengths = representative(buckets)
    assert longest(buckets) == (int(lengths.max()) if len(lengths) else 0)
    assert int(lengths.sum()) == sum(bucket.tokens for bucket in buckets)
