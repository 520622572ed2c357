"""Plans whose micro-batches have few sizes: sound, bounded, with little padding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqplan import (
    Plan,
    Planner,
    choose_plan_shapes,
    explain,
    find_profile,
    from_json,
    rank_view,
    to_json,
)
from seqplan.costs.fit.measurements import measurable
from seqplan.planner.errors import OptionError
from seqplan.planner.placement.pack_shapes import pack_into_sizes
from seqplan.planner.step.check_bounds import find_unproven
from seqplan.planner.step.shapes_planner import count_padded_tokens
from seqplan.planner.workload import Workload
from seqplan.plans.lint import lint
from seqplan.plans.shapes import pad_to_shape

CODE = np.load(Path(__file__).parents[3] / "examples" / "data" / "code.npy")
PROFILE, GPUS, MAX_LEN = "llama3-8b-h100-80gb", 8, 32_768


def draw(tokens: int, seed: int) -> list[int]:
    drawn = np.random.default_rng(seed).choice(CODE[CODE <= MAX_LEN], 4_000)
    return drawn[: int(np.searchsorted(np.cumsum(drawn), tokens))].tolist()


def sample(number: int) -> list[Plan]:
    planner = Planner.from_profile(PROFILE, GPUS, MAX_LEN, execution="static", prove=False)
    return [planner.plan(draw(400_000, 100 + seed)) for seed in range(number)]


def test_plans_with_shapes_are_sound() -> None:
    shapes = choose_plan_shapes(sample(10), 8)
    assert len(shapes) == 8
    models = Workload(GPUS, MAX_LEN, MAX_LEN).models(find_profile(PROFILE))
    planner = Planner.from_profile(PROFILE, GPUS, MAX_LEN, shapes=shapes)
    for seed in range(3):
        lengths = draw(400_000, seed)
        made = planner.plan(lengths)
        assert lint(made, models) == []
        assert from_json(to_json(made)) == made
        assert list(find_unproven(made, models)) == []
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
    (line,) = (line for line in explain(made).splitlines() if "of 8 shapes" in line)
    assert line.endswith("of the tokens are padding to them")
    other = replace(made, shapes=(*shapes[:-1], 2 * shapes[-1]))
    assert any("padded_tokens" in fault for fault in lint(other, models))
    assert any("no shape holds it" in f for f in lint(replace(made, shapes=shapes[:1]), models))


def test_packing_nearly_fills_the_sizes() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        tokens = rng.integers(20, 900, rng.integers(1, 60)).tolist()
        sizes = sorted({1_000, *rng.integers(100, 4_000, 6).tolist()})
        packed = pack_into_sizes(tokens, sizes)
        assert packed is not None
        assert sorted(j for micro in packed for j in micro) == list(range(len(tokens)))
        assert all(sum(tokens[j] for j in micro) <= sizes[-1] for micro in packed)
    assert pack_into_sizes([10, 2_000], [100, 1_000]) is None
    # 1,000 + 400 hold 1,400 tokens, where largest first leaves 600 of 1,000 to the second.
    exact = pack_into_sizes([300, 100, 700, 300], [400, 1_000])
    assert exact is not None
    assert sorted(sum([300, 100, 700, 300][j] for j in micro) for micro in exact) == [400, 1_000]


BAD: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
    ({"shapes": 8}, TypeError, "shapes: 8. Give sizes, as choose_plan_shapes(plans, 8) does"),
    ({"shapes": [0]}, OptionError, "shapes: 0. Give tokens on a rank"),
    ({"shapes": [9, 8]}, OptionError, "shapes [9, 8]: must ascend"),
    ({"shapes": [64]}, OptionError, "shapes: sequences have up to max_len 32768 tokens, and"),
    ({"shapes": [32_768], "exact": True}, OptionError, "exact with shapes: not supported"),
    ({"shapes": [32_768], "execution": "lockstep"}, OptionError, "shapes with execution lockstep"),
    ({"shapes": [32_768], "slowdown": [1.0] * 7 + [1.3]}, OptionError, "shapes with slowdown"),
)


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_shapes_that_cannot_be_planned(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        Planner.from_profile(PROFILE, GPUS, MAX_LEN, **options)
    assert str(caught.value).startswith(message)


def test_sizes_are_chosen_from_plans() -> None:
    plans = sample(2)
    with pytest.raises(ValueError, match="plans: have no micro-batches"):
        choose_plan_shapes([], 4)
    with pytest.raises(ValueError, match="number of shapes must be a whole number"):
        choose_plan_shapes(plans, 0)
    (largest,) = choose_plan_shapes(plans, 1)
    batches = [
        b.padded_tokens // p.scheme.sp for q in plans for p in q.pipelines for b in p.micro_batches
    ]
    assert largest >= max(batches)
