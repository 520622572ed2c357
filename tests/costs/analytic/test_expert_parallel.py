"""Expert parallelism in the analytic model: products, exchanges, memory, sync."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from deployments import LLAMA3_8B as LLAMA
from deployments import QWEN3_30B as QWEN
from deployments import deploy, read_terms

from seqplan import Profile, Scheme
from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.estimate import Load, estimate, problem
from seqplan.costs.analytic.expert_parallel import ExpertParallelism
from seqplan.costs.analytic.experts import count_copies, split_parameters
from seqplan.costs.analytic.memory import layer_activation_bytes
from seqplan.costs.analytic.rederive import rederive_profile
from seqplan.costs.analytic.terms import stage_terms
from seqplan.costs.analytic.validation.expert_runs import (
    check_odd_experts,
    estimate_run,
    expert_checks,
    is_newest,
    list_expert_runs,
)
from seqplan.costs.analytic.validation.table_check import judges

DEPLOYMENT = deploy(QWEN, "h100-80gb", 8)


def with_experts(deployment: Deployment = DEPLOYMENT, **options: Any) -> Deployment:
    """The deployment with expert parallelism."""
    return replace(deployment, experts=ExpertParallelism(**options))


def terms(deployment: Deployment, scheme: str = "tp1", tokens: int = 8192) -> dict[str, float]:
    """Terms of a micro-batch of one sequence."""
    return read_terms(deployment, scheme, [tokens], 64)


def test_a_dense_model_has_no_terms_of_experts() -> None:
    assert not [name for name in terms(replace(DEPLOYMENT, sizes=LLAMA)) if "expert" in name]


def test_experts_of_a_block_have_more_rows_each_and_take_less_time() -> None:
    times = [terms(with_experts(degree=degree))["experts"] for degree in (1, 8, 64)]
    assert times[0] > 1.2 * times[1]
    assert times[2] == pytest.approx(times[1], rel=0.1)
    # Other terms of a layer do not change.
    for name in ("matrix products", "attention", "memory-bound", "head and loss"):
        assert terms(with_experts(degree=8))[name] == terms(DEPLOYMENT)[name]


def test_imbalance_lengthens_what_experts_take_and_exchange() -> None:
    even, uneven = (terms(with_experts(degree=16, imbalance=i)) for i in (1.0, 2.0))
    assert uneven["expert exchange"] == pytest.approx(2 * even["expert exchange"], rel=0.02)
    assert 1.5 * even["experts"] < uneven["experts"] < 2 * even["experts"]
    assert uneven["attention"] == even["attention"]


def test_exchanges_between_nodes_are_slower_and_deduplicated_ones_faster() -> None:
    near = terms(with_experts(degree=8))["expert exchange"]
    far = terms(with_experts(degree=16))["expert exchange"]
    assert far > 3 * near
    once = terms(with_experts(degree=16, dispatcher="deepep"))["expert exchange"]
    # Of 8 experts half are on the other node: 4 copies without deduplication, 1 with it.
    assert once == pytest.approx(far / 4, rel=0.05)
    hidden = terms(with_experts(degree=16, overlap=0.75))["expert exchange"]
    assert hidden == pytest.approx(far / 4)


def test_routing_to_few_groups_limits_the_nodes_of_a_token() -> None:
    special = QWEN.architecture
    assert count_copies(special, 1) == pytest.approx(1.0)
    assert count_copies(special, 10**6) == pytest.approx(8.0, rel=1e-3)
    assert count_copies(special, 8, 4.0) == 4.0
    grouped = replace(QWEN, architecture=replace(special, expert_groups=8, groups_per_token=2))
    free, limited = (
        terms(with_experts(replace(DEPLOYMENT, sizes=sizes), degree=64, dispatcher="deepep"))
        for sizes in (QWEN, grouped)
    )
    nodes = 8 * (1 - (7 / 8) ** 8)
    assert limited["expert exchange"] == pytest.approx(2 / nodes * free["expert exchange"], rel=0.1)


def test_recomputing_the_feed_forward_repeats_its_exchanges() -> None:
    plain, again = (
        terms(with_experts(replace(DEPLOYMENT, recompute=mode), degree=16))["expert exchange"]
        for mode in ("none", "full")
    )
    assert again == pytest.approx(1.5 * plain)


def test_tokens_of_experts_are_not_gathered_over_tp() -> None:
    gathered, exchanged = (
        terms(with_experts(degree=degree), "tp4")["tp communication"] for degree in (1, 8)
    )
    assert exchanged == pytest.approx(gathered / 2)


def test_split_experts_gather_their_rows() -> None:
    whole, split = (terms(with_experts(degree=8, tensor=t), "tp2") for t in (1, 2))
    assert split["expert exchange"] > whole["expert exchange"]
    assert split["experts"] < 1.3 * whole["experts"]


def test_states_of_experts_are_divided_by_their_block() -> None:
    def resident(scheme: str, **options: Any) -> float:
        load = Load(seq_len=4096, batch=64)
        found = estimate(with_experts(**options), Scheme.parse(scheme), load)
        return found.memory_bytes["parameters and gradients"]

    experts, dense = QWEN.expert_parameters, QWEN.parameters - QWEN.expert_parameters
    assert experts == 48 * 128 * 3 * 2048 * 768
    assert resident("tp1") == pytest.approx(6 * QWEN.parameters)
    assert resident("tp1", degree=8) == pytest.approx(6 * (dense + experts / 8))
    assert resident("tp2", degree=8) == pytest.approx(6 * (dense / 2 + experts / 8))
    assert resident("tp2", degree=8, tensor=2) == pytest.approx(6 * (dense / 2 + experts / 16))


def test_gradients_of_experts_are_summed_over_their_own_replicas() -> None:
    dense, experts = split_parameters(with_experts(degree=8), Scheme(tp=2), 32, 1e9, 8e9)
    assert (dense.parameters, dense.group.size, dense.group.stride) == (5e8, 32, 2)
    assert (experts.parameters, experts.group.size, experts.group.stride) == (1e9, 8, 8)
    (both,) = split_parameters(DEPLOYMENT, Scheme(tp=2), 32, 1e9, 8e9)
    assert both.parameters == 4.5e9
    load = Load(seq_len=4096, batch=64)
    whole, split, alone = (
        estimate(with_experts(degree=degree), Scheme(), load).terms_ms["parameter sync"]
        for degree in (1, 8, 64)
    )
    # Within a node one ring over all cards, or a ring with an eighth of the bytes over each.
    assert 0.8 * whole < split < whole
    assert alone < 0.1 * whole


def test_fuller_ranks_keep_more_and_recomputed_modules_less() -> None:
    even = layer_activation_bytes(QWEN, "none", 1)
    assert layer_activation_bytes(QWEN, "none", 1, imbalance=2.0) - even == 8 * (4 * 2048 + 6 * 768)
    for module, dropped in (
        ("layernorm", 4 * 2048),
        ("moe_act", 2 * 8 * 768),
        ("moe", 8 * (4 * 2048 + 6 * 768)),
    ):
        assert even - layer_activation_bytes(QWEN, "none", 1, modules=[module]) == dropped
        again = terms(replace(DEPLOYMENT, recompute_modules=(module,)))
        assert sum(again.values()) > sum(terms(DEPLOYMENT).values())
    with pytest.raises(ValueError, match="recompute_modules must be of layernorm"):
        replace(DEPLOYMENT, recompute_modules=("norms",))
    with pytest.raises(ValueError, match="recompute 'full' must be none"):
        replace(DEPLOYMENT, recompute="full", recompute_modules=("moe",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"degree": 3}, "expert_parallel = 3 does not divide the 128 experts"),
        ({"degree": 8, "imbalance": 0.9}, "expert_imbalance must be a number from 1 to 1000: 0.9"),
        ({"imbalance": 2.0}, "expert_imbalance 2: requires expert_parallel above 1"),
        ({"degree": 8, "dispatcher": "x"}, "dispatcher must be one of nccl, deepep, hybridep"),
        ({"tensor": 2}, "expert_tensor_parallel 2: requires expert_parallel above 1"),
        ({"degree": 8, "overlap": 1.5}, "expert_overlap must be a share from 0 to 1: 1.5"),
    ],
)
def test_bad_values_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        with_experts(**options)
    with pytest.raises(ValueError, match="requires a model with experts"):
        with_experts(replace(DEPLOYMENT, sizes=LLAMA), degree=8)


def test_a_block_is_on_one_stage() -> None:
    load = Load(seq_len=4096, batch=64)
    assert problem(with_experts(degree=32), Scheme(pp=2), load) is None
    assert problem(with_experts(degree=64), Scheme(pp=2), load) == (
        "blocks of 64 ranks of experts do not divide a stage's 32 GPUs"
    )


def test_a_derived_profile_has_an_entry_of_each_degree() -> None:
    schemes = [Scheme(), Scheme(tp=2), Scheme(pp=2)]
    document = derive_profile(
        with_experts(degree=64, imbalance=1.5), schemes, name="x", expert_degrees=(64, 1, 8)
    )
    profile = Profile.from_document(document, "x")
    assert [(str(e.scheme), e.expert_parallel) for e in profile.schemes] == [
        *(("tp1", 1), ("tp1", 8), ("tp1", 64), ("pp2", 1), ("pp2", 8)),
        *(("tp2", 1), ("tp2", 8), ("tp2", 64)),
    ]
    for entry in profile.schemes:
        assert (entry.b_shared > 0) == (entry.expert_parallel > 1)
        assert entry.b_shared < entry.latency.b
    assert any("1.5 times the mean of tokens (assumed)" in note for note in document["notes"])
    eight = profile.at_expert_parallel(8).by_scheme[Scheme()]
    # The share is what experts and exchanges cost per token.
    deployment = with_experts(degree=8, imbalance=1.5)
    of_block = [terms(deployment, tokens=n) for n in (65536, 131072)]
    half, whole = (found["experts"] + found["expert exchange"] for found in of_block)
    assert eight.b_shared == pytest.approx((whole - half) / 65536)
    # Without EP the profile states what it always did.
    one = derive_profile(DEPLOYMENT, schemes, name="x")
    assert "resident_expert_bytes" not in one["memory"]
    memory = profile.memory
    assert one["memory"]["resident_layer_bytes"] == pytest.approx(
        memory.resident_layer_bytes + memory.resident_expert_bytes
    )
    assert (
        Profile.from_document(one, "x").by_scheme[Scheme()]
        == profile.at_expert_parallel(1).by_scheme[Scheme()]
    )


def test_a_profile_with_experts_is_derived_again_for_another_stage() -> None:
    name = "qwen-h100"
    known = derive_profile(DEPLOYMENT, [Scheme()], name=name, expert_degrees=(1, 8))
    again = rederive_profile(Profile.from_document(known, name), 3, 64, lambda s: s == Scheme())
    assert again.expert_degrees == (1, 8)
    other = derive_profile(
        with_experts(degree=8, dispatcher="deepep"), [Scheme()], name=name, expert_degrees=(1, 8)
    )
    assert rederive_profile(Profile.from_document(other, name), 3, 64, lambda _: True) is None


def test_nearly_every_published_run_fits() -> None:
    runs = [run for run in list_expert_runs() if run["trainer"] == "bridge_experts"]
    assert len(runs) == 133
    assert len([run["id"] for run in runs if not estimate_run(run).fits]) <= 0.03 * len(runs)


def test_runs_that_set_nothing_are_predicted() -> None:
    tables = expert_checks()
    odd = check_odd_experts(tables)
    assert len(odd.rows) >= 8
    assert odd.median_error <= 0.15
    assert odd.p90_error <= 0.35
    assert odd.rank_correlation >= 0.9
    for check in tables:
        if any(row.identifier for row in check.rows):
            assert check.rank_correlation >= 0.95, check.name
    assert {run["release"] for run in list_expert_runs() if is_newest(run)} >= {"26.08", "26.06"}
    assert sum(any(row.identifier for row in check.rows) for check in tables) == 5
    assert any(not judges(run["id"]) for run in list_expert_runs())


@pytest.mark.parametrize(
    ("degree", "dispatcher"),
    [(1, "nccl"), (8, "nccl"), (64, "nccl"), (8, "deepep"), (64, "deepep")],
)
@pytest.mark.parametrize("scheme", ["tp1", "tp4", "u2.r2"])
def test_a_longer_sequence_never_takes_less_time(degree: int, dispatcher: str, scheme: str) -> None:
    options = ExpertParallelism(degree=degree, dispatcher=dispatcher)
    lengths = np.arange(64, 4096, 31)[:, None]
    found = stage_terms(replace(DEPLOYMENT, experts=options), Scheme.parse(scheme), lengths, 8)
    times = np.sum([np.broadcast_to(ms, len(lengths)) for ms in found.values()], axis=0)
    assert (np.diff(times) >= -1e-9 * times[1:]).all()
    empty = stage_terms(replace(DEPLOYMENT, experts=options), Scheme.parse(scheme), [[0, 0]], 8)
    assert all((ms == 0).all() for ms in empty.values())
