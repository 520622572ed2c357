"""Sizes of models, and which schemes they can run."""

from itertools import product

import pytest

from seqplan.costs.model_sizes import ModelShape, ModelSizes, parameters
from seqplan.costs.scheme_rules import scheme_problem
from seqplan.plans.scheme import Scheme
from seqplan.plans.scheme_limits import find_unsupported

GROUPED = ModelShape(hidden=4096, layers=30, heads=24, kv_heads=6)
UNKNOWN = ModelShape(hidden=4096, layers=30)


@pytest.mark.parametrize(
    "scheme", ["tp1", "tp2", "tp3", "tp6", "tp12", "tp24", "u6", "tp2.u3", "pp5", "pp30", "r7"]
)
def test_schemes_that_can_run(scheme: str) -> None:
    assert scheme_problem(Scheme.parse(scheme), GROUPED) is None


@pytest.mark.parametrize(
    ("scheme", "problem"),
    [
        ("tp5", "tp·ulysses = 5 does not divide the 24 attention heads"),
        ("tp2.u5", "tp·ulysses = 10 does not divide the 24 attention heads"),
        ("u48", "tp·ulysses = 48 does not divide the 24 attention heads"),
        ("tp4", "tp = 4 neither divides nor replicates 6 KV heads"),
        ("u8", "tp·ulysses = 8 neither divides nor replicates 6 KV heads"),
        ("tp2.u2", "tp·ulysses = 4 neither divides nor replicates 6 KV heads"),
        ("pp4", "pp = 4 does not divide the 30 layers"),
    ],
)
def test_schemes_that_cannot(scheme: str, problem: str) -> None:
    assert scheme_problem(Scheme.parse(scheme), GROUPED) == problem


def test_the_runtime_runs_every_scheme_of_a_profile() -> None:
    """A profile is rejected with any other scheme, and plans have only a profile's schemes."""
    allowed = 0
    for layers, heads, kv_heads in product((1, 2, 6, 30), (1, 4, 12, 24), (1, 2, 3, 6)):
        if heads % kv_heads:
            continue
        shape = ModelShape(hidden=64 * heads, layers=layers, heads=heads, kv_heads=kv_heads)
        sizes = {"layers": layers, "heads": heads, "kv_heads": kv_heads, "ffn": 100, "vocab": 50}
        for tp, pp, ulysses in product((1, 2, 3, 4, 6, 8, 12, 24), (1, 2, 3, 5), (1, 2, 3, 4, 6)):
            scheme = Scheme(tp, pp, ulysses, 1)
            if scheme_problem(scheme, shape) is None:
                assert find_unsupported(scheme, **sizes) is None, (scheme, shape)
                allowed += 1
    assert allowed > 200


def test_layers_are_checked_where_heads_are_unknown() -> None:
    assert scheme_problem(Scheme.parse("u7.tp11"), UNKNOWN) is None
    assert scheme_problem(Scheme.parse("pp7"), UNKNOWN) == "pp = 7 does not divide the 30 layers"


@pytest.mark.parametrize(
    ("text", "gpus_per_node", "group"),
    [
        ("tp6", 8, "tp = 6"),
        ("u4", 6, "tp·ulysses = 4"),
        ("tp2.u2", 6, "tp·ulysses = 4"),
        ("u4.r3", 6, "tp·ulysses = 4"),
        ("tp2.r2", 7, "tp = 2"),
        ("u8.r3", 16, None),
        ("tp2.r3", 8, None),
        ("u2.r3", 6, None),
        ("tp2.u3.r2", 6, None),
        ("tp8.u2.pp3", 8, None),
        ("tp2.pp6", 8, None),
    ],
)
def test_groups_lie_evenly_in_nodes(text: str, gpus_per_node: int, group: str | None) -> None:
    problem = scheme_problem(Scheme.parse(text), UNKNOWN, gpus_per_node=gpus_per_node)
    wanted = f"{group} neither divides nor is a multiple of {gpus_per_node} GPUs a node"
    assert problem == (None if group is None else wanted)


def test_heads_that_are_wider_than_hidden_over_heads() -> None:
    """Qwen3-32B: 64 heads of 128 next to a hidden size of 5120."""
    qwen = {"hidden": 5120, "layers": 64, "heads": 64, "kv_heads": 8, "ffn": 25600, "vocab": 151936}
    sizes = ModelSizes(**qwen, head_dim=128)
    assert (sizes.attention_width, sizes.kv_width) == (8192, 1024)
    layer = 2 * 5120 * (8192 + 1024) + 3 * 5120 * 25600 + 2 * 5120
    assert sizes.layers_parameters == 64 * layer
    assert sizes.as_dict() == {**qwen, "head_dim": 128}
    assert ModelSizes(**qwen, head_dim=80).as_dict() == qwen
    assert parameters(sizes.shape) == sizes.parameters == 64 * layer + (2 * 151936 + 1) * 5120


def test_tied_embeddings_are_one_on_a_stage_and_two_on_two() -> None:
    sizes = {"hidden": 64, "layers": 4, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 1000}
    apart, tied = ModelSizes(**sizes), ModelSizes(**sizes, tied=True)
    assert apart.parameters - tied.parameters == 64_000
    assert tied.count_stored_parameters(1) == tied.parameters
    assert tied.count_stored_parameters(2) == apart.count_stored_parameters(2) == apart.parameters
    assert tied.as_dict() == {**sizes, "tied": True}
    whole, half = parameters(apart.shape), parameters(tied.shape)
    assert half == whole - 64_000
