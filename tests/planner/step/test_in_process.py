"""Planning inside a program: from a profile alone, or from a proposal."""

from typing import Any

import numpy as np
import pytest
from step_lengths import CODE

from seqplan import (
    Batch,
    Planner,
    Workload,
    digest,
    explain,
    find_profile,
    from_json,
    make_proposal,
    rank_view,
    to_json,
)
from seqplan.planner.strategies.homogeneous import best_homogeneous
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import GivenSyncTimes
from seqplan.plans.lint import lint

LENGTHS = np.minimum(CODE[:90], 32_768)
PROFILE = find_profile("llama-32b-a800-80gb")


def test_a_profile_is_enough() -> None:
    planner = Planner.from_profile("llama-32b-a800-80gb", gpus=64, max_len=32_768)
    plan = planner.plan(LENGTHS)
    models = Workload(64, 32_768, 1).models(PROFILE)
    assert lint(plan, models) == []
    assert plan.lengths == tuple(LENGTHS.tolist())
    assert (plan.step, planner.plan(LENGTHS).step, planner.plan(LENGTHS, step=9).step) == (0, 1, 9)
    assert planner.plan(LENGTHS).step == 10
    # Another rank, or the same after a restart, plans the same way.
    again = Planner.from_profile(PROFILE, 64, 32_768).plan(LENGTHS.tolist())
    assert digest(again) == digest(plan)
    assert from_json(to_json(plan)) == plan
    assert rank_view(plan, 5).digest == digest(plan)
    assert explain(plan).startswith("step 0: ")
    sync = choose_sync(PROFILE, 64)
    static = best_homogeneous([Batch.from_lengths(LENGTHS.tolist())], models, 64, sync)
    static_ms = static[1][0] + sync.of_strategy_ms(static[0])
    assert plan.predicted_ms + plan.sync_ms <= static_ms * 1.001


def test_few_sequences_are_tried_on_static_strategies() -> None:
    """Three sequences on eight GPUs: one after another on all, in the layout that is best so."""
    profile = find_profile("llama-7b-a800-80gb")
    for number, length in ((3, 7580), (2, 16_000), (5, 900)):
        batch = Batch.from_lengths([length] * number)
        plan = Planner.from_profile(profile, 8, 16_384).plan(batch.lengths)
        sync = choose_sync(profile, 8)
        static = best_homogeneous([batch], Workload(8, 16_384, 1).models(profile), 8, sync)
        static_ms = static[1][0] + sync.of_strategy_ms(static[0])
        assert plan.predicted_ms + plan.sync_ms <= static_ms * 1.001


def test_layout_groups_and_sync_follow_the_arguments() -> None:
    free = GivenSyncTimes(0.0, 0.0, "none", 0.0, 0.0)
    several = Planner.from_profile(PROFILE, 64, 32_768, sync=free).plan(LENGTHS)
    assert {p.scheme.tp for p in several.pipelines} != {16}
    plan = Planner.from_profile(PROFILE, 64, 32_768, layout="tp16", execution="static").plan(
        LENGTHS
    )
    assert {(p.scheme.tp, p.scheme.pp) for p in plan.pipelines} == {(16, 1)}
    assert not plan.regroups
    quick = Planner.from_profile(
        PROFILE, 64, 32_768, layout="tp16", execution="static", prove=False
    )
    unproven = quick.plan(LENGTHS)
    assert unproven.lower_bound_ms <= plan.lower_bound_ms
    assert quick.prove(unproven).lower_bound_ms >= unproven.lower_bound_ms


def test_a_proposal_brings_its_options() -> None:
    profile = PROFILE.restrict(layout=(8, 1), measured=True)
    document = make_proposal(
        profile, Workload(32, 8192, 60_000), CODE[:3000], sync=choose_sync(profile, 32)
    )
    planner = Planner.from_proposal(document)
    assert planner.gpus == 32
    plan = planner.plan(LENGTHS[LENGTHS <= 8192], loss_tokens=17)
    assert plan.provenance.proposal == document.digest
    assert plan.loss_tokens == 17
    static = Planner.from_proposal(document, execution="static")
    assert static.plan(LENGTHS[LENGTHS <= 8192]).provenance.proposal == document.digest


def test_micro_steps_of_zero_3() -> None:
    plan = Planner.from_profile("gpt-7b-a100-40gb", gpus=8, max_len=8192).plan([700, 2900] * 20)
    assert {pipeline.micro_step is None for pipeline in plan.pipelines} == {False}


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "there are no sequences"),
        ([[1, 2]], r"sequence 0 has length \[1, 2\]"),
        ([[1, 2], [3]], r"sequence 0 has length \[1, 2\]"),
        ([3, 0], "step 0: sequence 1 has length 0"),
        ([3, 2.5], "whole numbers"),
        ([3, float("nan")], "whole numbers"),
        (["a"], "whole numbers"),
        (np.ma.masked_array([5, 7], [0, 1]), "step 0: sequence 1 has length None. Give whole"),
        (np.array([2**64 - 5], dtype=np.uint64), "sequence 0 has .* tokens. Give 2147483647 at"),
        ([1e30], "step 0: sequence 0 has .* tokens. Give 2147483647 at most"),
        ([2.0**63], "step 0: sequence 0 has .* tokens. Give 2147483647 at most"),
        ([3, 9000], "step 0: sequence 1 has 9000 tokens, beyond max_len 8192"),
    ],
)
def test_lengths_that_cannot_be(lengths: Any, message: str) -> None:
    planner = Planner.from_profile("llama-7b-a800-80gb", gpus=8, max_len=8192, prove=False)
    with pytest.raises(ValueError, match=message):
        planner.plan(lengths)
    assert planner.plan([5]).step == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_tokens": -1}, "step 0: -1 loss tokens; there are from 0 to 107"),
        ({"loss_tokens": 108}, "108 loss tokens"),
        ({"loss_tokens": 50.5}, "loss_tokens must be a whole number, not 50.5"),
        ({"step": -4}, "step -4: steps are counted from 0"),
        (
            {"step": 2**63},
            "step 9223372036854775808: steps are counted from 0. Give",
        ),
        ({"ids": [1, 2**63]}, "id 9223372036854775808; ids must be below 2"),
        ({"step": 1.5}, "step must be a whole number"),
        ({"step": True}, "step must be a whole number, not True"),
        ({"loss_tokens": True}, "loss_tokens must be a whole number, not True"),
        ({"ids": [True, False]}, "an id must be a whole number, not True"),
        ({"ids": np.ma.masked_array([4, 2], [1, 0])}, "an id must be a whole number, not masked"),
        ({"ids": [3, -3]}, "id -3; ids must be 0 or more"),
        ({"ids": [1.7, 3]}, "an id must be a whole number, not 1.7"),
        ({"ids": [1]}, "1 ids but 2 lengths"),
    ],
)
def test_invalid_steps_are_rejected(options: dict[str, Any], message: str) -> None:
    """Losses are divided by the loss tokens, and ids are what a trainer loads."""
    planner = Planner.from_profile("llama-7b-a800-80gb", gpus=8, max_len=8192, prove=False)
    with pytest.raises(ValueError, match=message):
        planner.plan([100, 7], **options)
    plan = planner.plan([100, 7], ids=np.array([4, 2]), loss_tokens=0, step=3)
    assert (plan.ids, plan.loss_tokens, plan.step) == ((4, 2), 0, 3)


def test_a_plan_is_proven_by_an_equal_planner() -> None:
    """Where groups hold less, as on fewer GPUs, a bound would be false."""
    profile = "llama-7b-a800-80gb"
    lengths = np.random.default_rng(0).integers(7500, 15000, 40)
    plan = Planner.from_profile(
        profile, 64, 32768, layout="tp4", execution="static", prove=False
    ).plan(lengths)
    for gpus, max_len in ((4, 32768), (64, 16384)):
        other = Planner.from_profile(profile, gpus, max_len, layout="tp4", execution="static")
        with pytest.raises(ValueError, match="step 0: planned from another proposal, or for other"):
            other.prove(plan)
    same = Planner.from_profile(profile, 64, 32768, layout="tp4", execution="static")
    assert same.prove(plan).lower_bound_ms >= plan.lower_bound_ms


def test_a_proposal_weighs_the_sync_by_default() -> None:
    lengths = [700, 2900] * 200
    workload = Workload(16, 8192, 60_000)
    profile = PROFILE.restrict(layout=(8, 1), measured=True)
    assert make_proposal(profile, workload, lengths).sync == choose_sync(profile, 16)
    assert make_proposal(profile, workload, lengths, sync=None).sync is None


def test_resident_bytes_follow_the_profile() -> None:
    """Parameters and gradients whole, the states over the GPUs; as more GPUs share them, less."""
    few, many = (Planner.from_profile("llama-7b-a800-80gb", gpus, 4096) for gpus in (8, 64))
    memory = find_profile("llama-7b-a800-80gb").memory
    whole = memory.resident_layer_bytes + memory.resident_embedding_bytes
    ((_, sharded),) = memory.sharded_state_bytes
    assert few.resident_bytes == pytest.approx(whole + sharded / 8)
    assert many.resident_bytes == pytest.approx(whole + sharded / 64)


def test_long_sequences_that_run_one_after_another_are_counted() -> None:
    planner = Planner.from_profile("llama-7b-a800-80gb", 16, 65_536, layout="tp1")
    models = planner._problem.models
    held = {scheme.gpus: 0 for scheme in models}
    for scheme, model in models.items():
        if (scheme.tp, scheme.pp) == (1, 1):
            held[scheme.gpus] = max(held[scheme.gpus], model.max_sequence)
    length = held[2] + 1_000  # groups of four hold it, and four of them fit
    plan = planner.plan([length] * 5 + [500] * 8)
    assert "long:" not in explain(plan)
    (line,) = [line for line in explain(plan, models).splitlines() if line.startswith("long: 5")]
    assert line.endswith("4 GPUs or more, of which 4 fit side by side: 2 in a row")
