"""Schemes that are derived by default: long rings, deep models, the same for each ZeRO stage."""

from seqplan import Scheme
from seqplan.costs.analytic.gpus.devices import find_device
from seqplan.costs.analytic.rederive import rederive_profile
from seqplan.costs.default_schemes import find_longest_ring, list_default_schemes
from seqplan.costs.model_sizes import ModelShape
from seqplan.costs.shipped.catalogue import load_shipped

SHAPE = ModelShape(hidden=4096, layers=96)
DEEP = "llama3-70b-h100-80gb"


def test_long_rings_are_of_whole_nodes_and_a_quarter_of_the_cluster() -> None:
    def longest(tp: int, ulysses: int, gpus: int) -> int:
        schemes = list_default_schemes(SHAPE, gpus, 8, layouts=[(tp, 1)])
        return max(scheme.ring for scheme in schemes if scheme.ulysses == ulysses)

    assert [longest(1, 8, gpus) for gpus in (64, 128, 256, 1024, 10_000)] == [2, 4, 8, 32, 64]
    assert [longest(8, 1, gpus) for gpus in (64, 256, 1024)] == [8, 8, 32]
    assert longest(1, 1, 10_000) == longest(4, 1, 10_000) == 8
    assert longest(16, 1, 10_000) == 8  # over two nodes
    assert all(s.gpus <= 64 for s in list_default_schemes(SHAPE, 64, 8, layouts=[(8, 2)]))


def test_longest_ring_is_of_the_layouts_of_the_profile() -> None:
    profile = load_shipped(DEEP)
    only = profile.keep_schemes({Scheme(tp=4, pp=2)})
    assert find_longest_ring(profile, 1024) == find_longest_ring(only, 1024) == 32
    assert find_longest_ring(profile.keep_schemes({Scheme(tp=8, pp=8)}), 1024) == 1


def test_only_models_that_fill_their_devices_have_many_stages() -> None:
    shape, memory = load_shipped(DEEP).shape, find_device("h100-80gb").memory_bytes

    def most_stages(memory_bytes: float, shared: bool) -> int:
        schemes = list_default_schemes(shape, 128, 8, memory_bytes=memory_bytes)
        return max(scheme.pp for scheme in schemes if (scheme.sp > 1) == shared)

    assert [most_stages(memory, shared) for shared in (False, True)] == [8, 4]
    assert [most_stages(4 * memory, shared) for shared in (False, True)] == [2, 2]


def test_a_profile_derived_for_another_zero_stage_has_the_same_stages() -> None:
    profile = load_shipped(DEEP)
    again = rederive_profile(profile, 2, 128, lambda _: True)
    assert again is not None
    stages, stages_again = (
        {(scheme.tp, scheme.pp, scheme.sp > 1) for scheme in each.by_scheme}
        for each in (profile, again)
    )
    assert (8, 8, False) in stages
    assert (8, 4, True) in stages
    assert stages <= stages_again
