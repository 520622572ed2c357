"""The latency model: costs, UtilLen by its definition, rejected coefficients."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.costs.shipped.catalogue import list_shipped, load_shipped
from seqplan.plans.scheme import Scheme

LONGEST = 200_000


def util_len_by_search(latency: Latency, threshold: float) -> int:
    """The definition, over every length in a range that holds the best."""
    tokens = np.arange(1, LONGEST + 1, dtype=np.float64)
    per_token = (latency.a * tokens * tokens + latency.b * tokens + latency.c) / tokens
    # The best over the reals, which no whole length needs to reach.
    best = latency.b + 2 * math.sqrt(latency.a * latency.c)
    return int(np.argmax(per_token * threshold <= best * (1 + 1e-12))) + 1


@pytest.mark.parametrize(
    "name", [name for name in list_shipped() if name.endswith(("a100-40gb", "a800-80gb"))]
)
@pytest.mark.parametrize("threshold", [0.5, 0.85, 0.95])
def test_util_len_is_its_definition(name: str, threshold: float) -> None:
    for entry in load_shipped(name).schemes:
        util_len = entry.latency.util_len(threshold)
        assert util_len == util_len_by_search(entry.latency, threshold), entry.scheme


@given(st.floats(1e-8, 1e-2), st.floats(0, 1), st.floats(2, 100), st.sampled_from([0.6, 0.85, 0.9]))
def test_util_len_is_the_least_length_within_the_threshold(
    a: float, b: float, c: float, threshold: float
) -> None:
    latency = Latency(a, b, c)
    best = b + 2 * math.sqrt(a * c)
    length = latency.util_len(threshold)
    assert length is not None

    def worse(tokens: int) -> float:
        return (a * tokens + b + c / tokens) * threshold / best - 1

    assert worse(length) <= 1e-9
    assert length == 1 or worse(length - 1) > -1e-9


def test_util_len_without_some_terms() -> None:
    assert Latency(0, 0.5, 10).util_len(0.8) == 80  # 0.5 + 10/l ≤ 0.5/0.8
    assert Latency(1e-3, 0.5, 0).util_len() == 1
    assert Latency(1e-3, 0, 0).util_len() == 1
    assert (
        Latency(1e-3, 0, 1.0).util_len() == 18
    )  # the smaller root of 1e-3·l² − (2√1e-3/0.85)·l + 1


def test_util_len_beyond_max_len_is_none() -> None:
    latency = Latency(0, 0.5, 10)
    assert SchemeModel(Scheme(), latency, 114).util_len == 114
    assert SchemeModel(Scheme(), latency, 113).util_len is None


def test_costs() -> None:
    latency = Latency(0.01, 0.5, 3)
    assert latency.work_ms([10, 20]).tolist() == [6.0, 14.0]
    assert latency.micro_batch_ms([10, 20]) == 23.0
    assert latency.micro_batch_ms([]) == 3.0
    assert SchemeModel(Scheme(pp=4), latency, 100).alone_ms(20) == 68.0


@pytest.mark.parametrize("name", ["a", "b", "c"])
@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, True, "1", None])
def test_invalid_coefficients_are_rejected(name: str, value: object) -> None:
    coefficients: dict[str, object] = {"a": 1.0, "b": 1.0, "c": 1.0, name: value}
    with pytest.raises(
        ValueError, match=f"coefficient {name} must be a number from 0 to 1,000,000,000, not"
    ):
        Latency(**coefficients)  # type: ignore[arg-type]


def test_a_scheme_must_take_time() -> None:
    with pytest.raises(ValueError, match="a and b are both 0"):
        Latency(0, 0, 5)
    with pytest.raises(ValueError, match="a and b are both 0 but for b_shared"):
        Latency(0, 0.1, 5, 0.1)
