"""The ZeRO-3 profiles against what their source publishes: cost model and memory."""

import math

import pytest

from seqplan.costs.profiled_scheme import ProfileError
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.plans.scheme import Scheme

# alpha1, alpha2, beta1, layers, hidden, activation MiB per token, billions of parameters by the
# largest context in K tokens
PUBLISHED = {
    "gpt-7b-a100-40gb": (
        (5.128e-06, 0.1839576, 629.3563, 32, 4096, 4.480441895),
        {4: 6.51, 192: 7.1174468994140625, 384: 7.8498687744140625},
    ),
    "gpt-13b-a100-40gb": (
        (9.2852e-06, 0.3060189, 1132.5632, 40, 5120, 4.220439453),
        {4: 12.3568, 192: 13.11605453491211, 384: 14.03158187866211},
    ),
    "gpt-30b-a100-40gb": (
        (1.54262e-05, 0.8035742, 2789.3644, 60, 6656, 3.417381836),
        {4: 30.538, 192: 31.52513885498047, 384: 32.71532440185547},
    ),
}

BANDWIDTH = {2: 119.54, 4: 104.07, 8: 96.5, 16: 10.33, 32: 5.94, 64: 4.87}
LIMIT_MIB, MIB = 30 * 1024, 2**20


@pytest.mark.parametrize("name", PUBLISHED)
def test_coefficients_are_the_published_cost_model(name: str) -> None:
    (alpha1, alpha2, beta1, layers, hidden, _), _ = PUBLISHED[name]
    profile = load_shipped(name)
    assert profile.zero_stage == 3
    assert profile.lockstep
    assert {entry.scheme.ulysses for entry in profile.schemes} == {1, *BANDWIDTH}
    for entry in profile.schemes:
        sp = entry.scheme.ulysses
        assert entry.scheme == Scheme(ulysses=sp)
        sync = 8 * layers * hidden * 2 / MIB / sp / BANDWIDTH[sp] if sp > 1 else 0.0
        assert entry.latency.a == pytest.approx(alpha1 / sp, rel=1e-12)
        assert entry.latency.b == pytest.approx(alpha2 / sp + sync, rel=1e-12)
        assert entry.latency.c == beta1


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("context", [1, 4096, 4097, 196608, 196609, 393216])
@pytest.mark.parametrize("gpus", [4, 16, 48, 64])
def test_max_len_is_the_published_memory_model(name: str, context: int, gpus: int) -> None:
    (*_, activation), sizes = PUBLISHED[name]
    parameters = next(size for limit, size in sizes.items() if context <= limit * 1024)
    profile = load_shipped(name)
    for entry in profile.schemes:
        room = LIMIT_MIB - parameters * 16 * 1024 / gpus
        expected = max(0, math.floor(room * entry.scheme.ulysses / activation))
        assert profile.model(entry, gpus, context).max_len == expected, entry.scheme


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_context_beyond_the_source_is_an_error(name: str) -> None:
    profile = load_shipped(name)
    assert profile.usable(64, 393216)
    with pytest.raises(ProfileError) as caught:
        profile.usable(64, 393217)
    assert str(caught.value) == (
        f"profile {name}: a context of 393217 tokens is beyond the 393216 for which the profile "
        "states the model's size. Use a shorter context"
    )
