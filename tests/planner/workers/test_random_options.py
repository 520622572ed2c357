"""Plans for shipped profiles with random options: sound, proven, and equal when planned again."""

from typing import Any

import numpy as np
import pytest

from seqplan import (
    Cost,
    Infeasible,
    Phase,
    Planner,
    explain,
    find_profile,
    from_json,
    rank_view,
    to_json,
)
from seqplan.costs.shipped.catalogue import list_shipped
from seqplan.planner.proposal.backends import BACKENDS
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.planner.step.check_bounds import find_unproven
from seqplan.plans.lint import lint

PLANS = 12
"""Plans of a run: some four in ten draws are options that go together."""


def draw_options(rng: np.random.Generator, gpus: int, experts: bool) -> dict[str, Any]:
    """Draw options of ``Planner.from_profile``, of which some exclude each other."""
    slowdown = [1.0, 1.0, 1.3, 2.0, 5.0, None]
    choices: list[tuple[float, str, Any]] = [
        (0.5, "execution", rng.choice(["static", "regroup", "lockstep"]).item()),
        (0.1, "micro_step_multiple", int(rng.integers(1, 4))),
        (0.2, "packing", "even"),
        (0.2, "prove", False),
        (0.04, "exact", True),
        (0.25, "sync", None),
        (0.2, "slowdown", [slowdown[i] for i in rng.integers(0, 6, gpus)]),
        (0.2, "trainer", rng.choice(list(BACKENDS)).item()),
        (0.2, "layout", rng.choice(["tp1", "tp2", "tp4", "tp2.pp2", "tp4.pp2", "pp4"]).item()),
        (0.3, "shapes", sorted({2 ** int(i) for i in rng.integers(9, 17, 3)})),
        (float(experts), "expert_parallel", rng.choice([1, 8, 16]).item()),
    ]
    return {name: value for chance, name, value in choices if rng.random() < chance}


@pytest.mark.parametrize("run", [6, 10, 14])
def test_plans_are_sound_and_proven(run: int) -> None:
    rng, made = np.random.default_rng(run), 0
    while made < PLANS:
        profile = find_profile(rng.choice(list_shipped()).item())
        gpus, max_len = rng.choice([4, 8, 16, 24, 48]).item(), 2 ** int(rng.integers(11, 18))
        options = draw_options(rng, gpus, "a3b" in profile.name or "a22b" in profile.name)
        number = rng.choice([1, 3, 10, 40]).item()
        drawn = (rng.pareto(rng.choice([0.8, 1.1, 2.0]), number) + 1) * rng.choice([20, 200, 1000])
        lengths = np.minimum(drawn, max_len).astype(int).tolist()
        images = Phase("images", rng.integers(0, 3000, number).tolist(), Cost(1e-6, 0.01, 2.0))
        loads = [images] if rng.random() < 0.2 else []
        try:
            planner = Planner.from_profile(profile, gpus, max_len, **options)
            plan = planner.plan(lengths, loads=loads)
        except (Infeasible, ValueError):
            continue
        made += 1
        where = (run, made, profile.name, gpus, max_len, options, bool(loads))
        problem = planner._problem
        models = problem.workload.leave_out(len(plan.lost_ranks)).models(problem.profile)
        multiple, exact = options.get("micro_step_multiple", 1), "exact" in options
        assert lint(plan, models) == [], where
        assert list(find_unproven(plan, models, multiple, exact=exact)) == [], where
        simulated_ms = simulate_plan_ms(plan, problem.profile.forward_fraction)
        assert simulated_ms <= plan.predicted_ms + 2e-3, where
        assert from_json(to_json(plan)) == plan, where
        again = Planner.from_profile(profile, gpus, max_len, **options)
        assert to_json(again.plan(lengths, loads=loads)) == to_json(plan), where
        assert explain(plan)
        assert rank_view(plan, int(rng.integers(gpus))).step == 0
