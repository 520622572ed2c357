"""Plans of sequences with work before the language model: sound, proven, better than by tokens."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from step_lengths import CASES, check_plan, draw

from seqplan import (
    Batch,
    Cost,
    Phase,
    Plan,
    Planner,
    Scheme,
    Workload,
    explain,
    find_profile,
    from_json,
    rank_view,
    to_json,
)
from seqplan.costs.fit.measurements import measurable
from seqplan.planner.batches.batches_file import batch_from_json, batch_to_json
from seqplan.planner.placement.exchange_positions import fit_loads
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.placement.greedy import pack_modes
from seqplan.planner.placement.slowdown import make_fleet_of
from seqplan.planner.step.check_bounds import find_unproven, witness_of
from seqplan.plans.format.codec import PlanError
from seqplan.plans.lint import lint
from seqplan.plans.load import PhaseLoad, time_loads
from seqplan.plans.views.decode_view import decode_view


def draw_vision(samples: int, seed: int, scale: float = 1.0) -> Phase:
    """Images for half of the samples, some 20 % of a step's work on 64 GPUs at a scale of 5."""
    rng = np.random.default_rng([seed, 1])
    patches = [
        rng.integers(256, 8_192, rng.integers(1, 4)).tolist() if rng.random() < 0.5 else []
        for _ in range(samples)
    ]
    return Phase("vision", patches, Cost(a=2e-6 * scale, b=0.01 * scale, c=3.0))


def time_with(plan: Plan, loads: tuple[PhaseLoad, ...]) -> float:
    """The slowest pipeline's time if its sequences had these loads (ms)."""
    return max(
        pipeline.predicted_ms
        + sum(time_loads(loads, pipeline.scheme, b.sequences) for b in pipeline.micro_batches)
        for pipeline in plan.pipelines
    )


def test_a_load_may_be_named_as_the_main_phase_is() -> None:
    vision = Phase("language model", [4_096, 0], Cost(a=0.0, b=0.01, c=0.0))
    plan = Planner.from_profile("llama3-8b-h100-80gb", 8, 32_768).plan([900, 80], loads=[vision])
    line = next(line for line in explain(plan).splitlines() if line.startswith("phases of"))
    assert line.count("language model") == 3  # both phases, and the one that binds


def test_micro_batches_hold_no_more_of_a_load_than_its_capacity() -> None:
    lengths = draw(200_000, 0)
    planner = Planner.from_profile("llama3-8b-h100-80gb", 8, 32_768)
    models = Workload(8, 32_768, 32_768).models(find_profile("llama3-8b-h100-80gb"))
    vision = draw_vision(len(lengths), 0)
    free = planner.plan(lengths, loads=[vision])
    limited = planner.plan(lengths, loads=[replace(vision, capacity=int(vision.tokens.max()))])
    assert any("each rank holds" in f for f in lint(replace(free, loads=limited.loads), models))
    check_plan(limited, models)
    assert limited.gap < 0.03
    batch = Batch.from_plan(limited)
    assert batch_from_json(batch_to_json(batch), "a line").loads == limited.loads


def test_loads_are_fitted_into_about_as_few_micro_batches_as_can_be() -> None:
    """Against all ways to part up to five sequences of one pipeline."""
    rng = np.random.default_rng(0)
    k = PipelineClass(1, 0.0, 1.0, 1.0, 100, 1, 1, 1)
    for _ in range(20):
        number = int(rng.integers(2, 6))
        tokens = tuple(rng.integers(0, 50, number).tolist())
        load = PhaseLoad("v", tokens, tuple(min(1.0, held) for held in tokens), 0.0, 50)
        batch = Batch(0, tuple(range(number)), tuple(rng.integers(1, 60, number).tolist()))
        batch = replace(batch, loads=(load,))
        fitted = fit_loads(k, Scheme(), batch, pack(k, batch))
        assert sorted(i for micro in fitted for i in micro) == list(range(number))
        assert all(is_held(micro, batch) for micro in fitted)
        ways = (
            [[i for i in range(number) if of[i] == j] for j in range(number)]
            for of in product(range(number), repeat=number)
        )
        held = (way for way in ways if all(is_held(micro, batch) for micro in way))
        assert len(fitted) <= 1 + min(sum(map(bool, way)) for way in held)


def pack(k: PipelineClass, batch: Batch) -> list[list[int]]:
    return pack_modes(k, list(batch.lengths))


def is_held(micro: list[int], batch: Batch) -> bool:
    """Whether 100 tokens, and 50 of the load, hold a micro-batch."""
    of_load = sum(batch.loads[0].tokens[i] for i in micro)
    return of_load <= 50 and sum(batch.lengths[i] for i in micro) <= 100


@pytest.mark.parametrize(("profile", "gpus", "tokens"), CASES)
@pytest.mark.parametrize("slow", [False, True])
def test_plans_with_loads_are_sound(profile: str, gpus: int, tokens: int, slow: bool) -> None:
    known = find_profile(profile)
    models = Workload(gpus, 32_768, 32_768).models(known)
    lengths = draw(tokens, 0)
    vision = draw_vision(len(lengths), 0, gpus / 13)
    slowdown = [1.0] * (gpus - 1) + [1.3] if slow else None
    planner = Planner.from_profile(profile, gpus, 32_768, slowdown=slowdown)
    made = planner.plan(lengths, loads=[vision])
    check_plan(made, models)
    assert made.gap < 0.03
    assert to_json(
        Planner.from_profile(profile, gpus, 32_768, slowdown=slowdown).plan(lengths, loads=[vision])
    ) == to_json(replace(made, step=0))
    assert planner.prove(made).lower_bound_ms >= made.lower_bound_ms
    assert measurable(made) == ()
    assert list(find_unproven(replace(made, lower_bound_ms=made.predicted_ms), models)) != []
    assert any(
        "phases of the slowest pipeline: vision" in line for line in explain(made).split("\n")
    )
    heavier = replace(made.loads[0], work_ms=tuple(2 * ms for ms in made.loads[0].work_ms))
    assert any("profile gives" in fault for fault in lint(replace(made, loads=(heavier,)), models))
    if not slow:
        static = Planner.from_profile(profile, gpus, 32_768, execution="static").plan(lengths)
        assert time_with(static, made.loads) > 1.1 * made.predicted_ms


@pytest.mark.parametrize(("patches", "most"), [(30_000, 1.12), (60_000, 1.06), (100_000, 1.06)])
def test_one_sample_with_much_work_gets_a_group_for_it(patches: int, most: float) -> None:
    """Its length alone does not show it: the strategy is changed until it is near the bound."""
    rng = np.random.default_rng(7)
    of_patches = rng.choice([0, 0, 1024, 2048], 400)
    of_patches[0] = patches
    lengths = (rng.integers(200, 3_000, 400) + of_patches // 4).tolist()
    planner = Planner.from_profile("llama3-8b-h100-80gb", gpus=64, max_len=32_768)
    loads = [Phase("vision", of_patches.tolist(), Cost(2e-6, 0.01, 3.0))]
    plan = planner.plan(lengths, loads=loads)
    assert plan.layout_lower_bound_ms is not None
    assert plan.predicted_ms <= most * plan.layout_lower_bound_ms
    (chosen,) = (row for row in plan.selection if row.strategy == plan.strategy)
    assert chosen.predicted_ms == pytest.approx(plan.predicted_ms)
    assert chosen.sync_ms is not None
    assert plan.sync_ms == chosen.sync_ms


def test_views_carry_the_tokens_of_loads() -> None:
    planner = Planner.from_profile("llama3-8b-h100-80gb", 8, 32_768)
    made = planner.plan([9_000, 500, 4_000, 700] * 4, loads=[draw_vision(16, 3)])
    view = rank_view(made, 0)
    raw = view.to_dict()
    assert decode_view(json.loads(json.dumps(raw))) == view
    (batch, *_) = view.pipelines[0].micro_batches
    patches = [made.loads[0].tokens[share.position] for share in batch.sequences]
    assert list(batch.loads["vision"]) == patches
    raw["pipelines"][0]["micro_batches"][0]["loads"]["vision"].append(1)
    with pytest.raises(ValueError, match=r"loads.vision: has \d+ values for \d+ sequences"):
        decode_view(raw)


def test_bounds_hold_for_every_assignment_of_few_sequences() -> None:
    """Pipelines of two GPUs, six sequences with two phases, and all ways to assign them."""
    profile = find_profile("llama3-8b-h100-80gb").keep_schemes({Scheme(tp=2)})
    models = Workload(6, 8_192, 8_192).models(profile)
    planner = Planner.from_profile(profile, 6, 8_192, sync=None)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(300, 8_000, 6).tolist()
        audio = Phase("audio", rng.integers(0, 900, 6).tolist(), Cost(0.0, 0.1, 1.0))
        made = planner.plan(lengths, loads=[draw_vision(6, seed, 3.0), audio])
        assert lint(made, models) == []
        (k, *_) = make_fleet_of(made, models).classes
        least = float("inf")
        for owners in product(range(len(made.pipelines)), repeat=len(lengths)):
            slowest = 0.0
            for pipeline in range(len(made.pipelines)):
                mine = [i for i, owner in enumerate(owners) if owner == pipeline]
                # As if one micro-batch held them all, which is no slower than others.
                alone = k.work_ms(np.array([lengths[i] for i in mine], dtype=np.int64)).sum()
                loads_ms = time_loads(made.loads, Scheme(tp=2), mine)
                slowest = max(slowest, float(alone) + loads_ms + (k.least_c if mine else 0.0))
            least = min(least, slowest)
        assert made.lower_bound_ms <= least * (1 + 1e-9)
        assert made.predicted_ms <= least * 1.03


def test_no_prices_are_written_for_loads() -> None:
    profile = "llama3-8b-h100-80gb"
    made = Planner.from_profile(profile, 8, 32_768).plan(
        draw(100_000, 1), loads=[draw_vision(len(draw(100_000, 1)), 1, 2.0)]
    )
    with pytest.raises(ValueError, match="no prices prove its bound"):
        witness_of(made, Workload(8, 32_768, 32_768).models(find_profile(profile)))


def test_damaged_loads_are_rejected_by_their_place() -> None:
    planner = Planner.from_profile("llama3-8b-h100-80gb", 8, 32_768)
    made = planner.plan([900, 800], loads=[Phase("v", [10, 0], Cost(0, 1, 0))])
    text = to_json(made)
    for old, new, message in (
        ('"tokens":[10,0],"work_ms"', '"tokens":[10],"work_ms"', "tokens: has 1 values for 2"),
        ('"work_ms":[10.0,0.0]', '"work_ms":[10.0,-1]', r"work_ms\[1\]: must be a finite number"),
    ):
        assert old in text
        with pytest.raises(PlanError, match=message):
            from_json(text.replace(old, new))
    one = replace(made, loads=(replace(made.loads[0], work_ms=(10.0,)),))
    assert "load v: 1 values for 2 sequences" in lint(one, {})


@pytest.mark.parametrize("factor", [2.0, 1000.0])
def test_a_slow_rank_is_never_worse_than_half_of_the_ranks(factor: float) -> None:
    lengths, items = [30_000, 8_000, 900, 900, 700], [[300], [64], [16], [200], [40]]
    totals = []
    for slowdown in ([1.0] * 15 + [factor], [1.0] * 8):
        planner = Planner.from_profile(
            "llama3-8b-h100-80gb", len(slowdown), 32_768, sync=None, slowdown=slowdown
        )
        loads = [Phase("vision", items, Cost(0.0, 0.02, 0.1))]
        totals.append(planner.plan(lengths, loads=loads).predicted_ms)
    assert totals[0] <= totals[1] * 1.01
