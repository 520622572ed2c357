"""Plans whose micro-batches have few sizes: sound, bounded, with little padding."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_lengths import check_plan, draw

from seqplan import (
    Batch,
    Plan,
    Planner,
    Profile,
    Scheme,
    Workload,
    choose_plan_shapes,
    explain,
    find_profile,
    rank_view,
    to_json,
)
from seqplan.costs.fit.measurements import measurable
from seqplan.planner.placement.fleet import ClassMode, PipelineClass
from seqplan.planner.placement.shapes.assign_shapes import SizedClass
from seqplan.planner.placement.shapes.fill_shapes import fill_shapes
from seqplan.planner.step.check_bounds import find_unproven
from seqplan.planner.step.shapes_planner import ShapesPlanner, count_padded_tokens
from seqplan.plans.lint import lint
from seqplan.plans.shapes import pad_to_shape, sum_least_sizes

PROFILE, GPUS, MAX_LEN = "llama3-8b-h100-80gb", 8, 32_768


def sample(number: int, longest: int = MAX_LEN) -> list[Plan]:
    planner = Planner.from_profile(PROFILE, GPUS, longest, execution="static", prove=False)
    return [planner.plan(draw(400_000, 100 + seed, longest)) for seed in range(number)]


SAMPLED = sample(10)


def test_plans_with_shapes_are_sound() -> None:
    shapes = choose_plan_shapes(SAMPLED, 8)
    assert len(shapes) == 8
    models = Workload(GPUS, MAX_LEN, MAX_LEN).models(find_profile(PROFILE))
    planner = Planner.from_profile(PROFILE, GPUS, MAX_LEN, shapes=shapes)
    for seed in range(3):
        lengths = draw(400_000, seed)
        made = planner.plan(lengths)
        check_plan(made, models)
        assert made.gap < 0.04
        rounded = sum(
            pad_to_shape(p.scheme, [lengths[i] for i in b.sequences], shapes) or 0
            for plan in [
                Planner.from_profile(PROFILE, GPUS, MAX_LEN, execution="static").plan(lengths)
            ]
            for p in plan.pipelines
            for b in p.micro_batches
        )
        assert count_padded_tokens(made) < rounded
        sizes = {
            b.padded_local_tokens for p in rank_view(made, 0).pipelines for b in p.micro_batches
        }
        assert sizes <= set(shapes)
        assert measurable(made) == ()
    assert planner.prove(made).lower_bound_ms >= made.lower_bound_ms
    again = Planner.from_profile(PROFILE, GPUS, MAX_LEN, shapes=shapes).plan(
        lengths, step=made.step
    )
    assert to_json(again) == to_json(made)
    lines = explain(made).splitlines()
    (place,) = (n for n, line in enumerate(lines) if "of 8 shapes" in line)
    assert lines[place].endswith("of the tokens are padding to them")
    extra = count_padded_tokens(made) / made.tokens - 1
    with_all = f"  with all padding {100 * extra:.2f} % extra tokens, at least 0.0"
    assert lines[place + 1].startswith(with_all)
    used = max(sizes)
    other = replace(made, shapes=tuple(sorted(2 * n if n == used else n for n in shapes)))
    assert any("padded_tokens" in fault for fault in lint(other, models))
    assert any("no shape holds it" in f for f in lint(replace(made, shapes=shapes[:1]), models))


@pytest.mark.parametrize(("number", "most"), [(8, 0.005), (4, 0.01)])
def test_few_sizes_need_little_padding(number: int, most: float) -> None:
    planner = Planner.from_profile(
        PROFILE, GPUS, MAX_LEN, shapes=choose_plan_shapes(SAMPLED, number)
    )
    for seed in range(3):
        made = planner.plan(draw(400_000, seed))
        assert count_padded_tokens(made) <= (1 + most) * made.tokens
        assert made.gap < 0.025


@pytest.mark.parametrize("seed", [141, 143, 180])
def test_pipelines_of_another_scheme_fill_sizes_better(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few sequences: the strategy that is fastest without sizes leaves much padding."""
    models = Workload(GPUS, MAX_LEN, MAX_LEN).models(find_profile(PROFILE))
    planner = Planner.from_profile(PROFILE, GPUS, MAX_LEN, shapes=(2_048, 8_192, MAX_LEN))
    drawn = (np.random.default_rng(seed).pareto(1.1, 12) + 1) * 300
    lengths = np.clip(drawn, 20, MAX_LEN).astype(int)
    made = planner.plan(lengths, step=0)
    check_plan(made, models)
    monkeypatch.setattr(ShapesPlanner, "_list_swapped", lambda *_: iter(()))
    assert planner.plan(lengths, step=0).predicted_ms > 1.05 * made.predicted_ms


def test_bounds_of_candidates_are_proven() -> None:
    """Those that are placed within the largest size end later than with all of MaxLen."""
    planner = Planner.from_profile("llama3-70b-h100-80gb", 48, 8_192, sync=None, shapes=[32_768])
    made = planner.plan([3_000])
    models = Workload(48, 8_192, 8_192).models(find_profile("llama3-70b-h100-80gb"))
    assert list(find_unproven(made, models)) == []


def test_sizes_of_modes_are_filled() -> None:
    """Most micro-batches are as large as one of several modes holds, and no size just misses it."""
    sizes = choose_plan_shapes(sample(10, 8_192), 8)
    models = Workload(GPUS, 8_192, 8_192).models(find_profile(PROFILE))
    limits = {
        mode.max_len for scheme in ("tp1", "tp2") for mode in models[Scheme.parse(scheme)].modes
    }
    assert {5_504, 18_596} <= {*sizes} & limits
    planner = Planner.from_profile(PROFILE, GPUS, 8_192, shapes=sizes, prove=False)
    made = [planner.plan(draw(400_000, seed, 8_192)) for seed in range(3)]  # of tp1 and of tp2
    assert sum(map(count_padded_tokens, made)) <= 1.005 * sum(plan.tokens for plan in made)
    assert max(plan.gap for plan in made) < 0.045


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=40),
    pipelines=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 50), max_size=4),
    modes=st.booleans(),
)
def test_every_way_to_fill_holds_each_sequence_once(
    lengths: list[int], pipelines: int, sizes: list[int], modes: bool
) -> None:
    k = PipelineClass(1, 1e-3, 0.1, 2.0, 400, 2, pipelines, 1)
    if modes:
        both = (ClassMode(8e-4, 0.08, 2.0, 200), ClassMode(1e-3, 0.1, 2.0, 400))
        k = replace(k, modes=both)
    batch = Batch(0, tuple(range(len(lengths))), tuple(lengths))
    placed: list[list[list[int]]] = [[] for _ in range(pipelines)]
    for i in range(len(lengths)):
        placed[i % pipelines].append([i])
    classes = [SizedClass(k, sorted({8 * size for size in sizes} | {400}))] * pipelines
    ways = fill_shapes(classes, batch, placed, 50.0)
    assert ways == fill_shapes(classes, batch, placed, 50.0)
    for way in ways:
        assert sorted(i for of in way for micro in of for i in micro) == list(range(len(lengths)))
        assert all(sum(k.pad(lengths[i]) for i in m) <= 400 for of in way for m in of)


def test_sizes_are_filled_where_others_would_be_padded() -> None:
    """Two pipelines, sizes 402 and 1,003: 700 + 300 and 300 + 100 fill them."""
    k = PipelineClass(1, 0.0, 1.0, 1.0, 1_003, 1, 2, 1)
    batch = Batch(0, (0, 1, 2, 3), (300, 100, 700, 300))
    (way, *_) = fill_shapes([SizedClass(k, (402, 1_003))] * 2, batch, [[[2]], [[0, 3, 1]]], 1_005.0)
    assert {sum(batch.lengths[i] for i in micro) for of in way for micro in of} == {400, 1_000}


def test_sizes_are_chosen_from_plans() -> None:
    plans = SAMPLED[:2]
    with pytest.raises(ValueError, match="plans: have no micro-batches"):
        choose_plan_shapes([], 4)
    with pytest.raises(ValueError, match="number of shapes must be a whole number"):
        choose_plan_shapes(plans, 0)
    (largest,) = choose_plan_shapes(plans, 1)
    batches = [
        b.padded_tokens // p.scheme.sp for q in plans for p in q.pipelines for b in p.micro_batches
    ]
    assert largest >= max(batches)


def test_chosen_sizes_run_the_schemes_of_the_plans() -> None:
    def cost(a: float, b: float, c: float, **degrees: int) -> dict[str, float]:
        return {**degrees, "a": a, "b": b, "c": c}

    document = {
        **find_profile("llama-7b-a800-80gb").document,
        "schemes": [cost(1e-5, 0.1, 10.0), cost(6e-6, 0.06, 20.0, ring=2)],
        "memory": {
            "capacity_bytes": 11.1e9,
            "context_bytes": 0,
            "margin_bytes": 0,
            "sharded_state_bytes": [[None, 8e9]],
            "resident_layer_bytes": 1.9e9,
            "resident_embedding_bytes": 1e8,
            "activation_bytes_per_token": {"1": 1e6},
        },
    }
    profile = Profile.from_document(document, "rings")
    lengths = [13_001] + [7_001, 6_003, 3_999, 1_235] * 6

    def planner(shapes: tuple[int, ...] | None = None) -> Planner:
        return Planner.from_profile(
            profile, 8, 13_001, execution="static", sync=None, shapes=shapes, prove=False
        )

    free = planner().plan(lengths)
    assert Scheme(ring=2) in free.strategy
    for number in (1, 2, 4):
        assert Scheme(ring=2) in planner(choose_plan_shapes([free], number)).plan(lengths).strategy


@given(st.integers(1, 120), st.sets(st.integers(1, 40), min_size=1, max_size=3))
def test_no_sizes_hold_tokens_in_a_smaller_sum(tokens: int, sizes: set[int]) -> None:
    sums = {0}
    while not any(reached >= tokens for reached in sums) or min(sums) < tokens:
        sums = {n if n >= tokens else n + size for n in sums for size in sizes}
    assert sum_least_sizes(tokens, sizes) == min(sums)
