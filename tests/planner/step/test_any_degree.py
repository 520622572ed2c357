"""Groups of any size: plans with more sizes are never slower, and bounds hold for all of them."""

from functools import cache

import pytest
from deployments import deploy
from step_lengths import check_plan, draw

from seqplan import Planner, Profile, Scheme, Workload
from seqplan.costs.analytic.derive import derive_profile
from seqplan.planner.execution import ExecutionKind
from seqplan.planner.step.check_bounds import find_unproven

POWERS, ANY = (1, 2, 4, 8), (1, 2, 3, 4, 5, 6, 7, 8)


@cache
def derive(rings: tuple[int, ...]) -> Profile:
    deployment = deploy("llama3-8b", "h100-80gb", 4, zero=1, recompute="none")
    schemes = [Scheme(tp=2, ring=ring) for ring in rings]
    return Profile.from_document(derive_profile(deployment, schemes, name="rings"), "rings")


@pytest.mark.parametrize("execution", ["lockstep", "static"])
@pytest.mark.parametrize(("gpus", "context"), [(32, 65_536), (24, 32_768)])
def test_more_sizes_are_never_slower(execution: ExecutionKind, gpus: int, context: int) -> None:
    faster = 0
    for seed in range(2):
        lengths = draw(12_000 * gpus, seed, context)
        powers, every = (
            Planner.from_profile(derive(rings), gpus, context, execution=execution, sync=None).plan(
                lengths
            )
            for rings in (POWERS, ANY)
        )
        assert every.predicted_ms <= powers.predicted_ms * (1 + 1e-9)
        faster += every.predicted_ms < powers.predicted_ms * 0.999
        models = Workload(gpus, context, context).models(derive(ANY))
        check_plan(every, models)
    assert faster or execution == "static"


def test_a_bound_between_two_relaxations_is_proven_again() -> None:
    """Prices at the bound and at later times do not refute it; those just before it do."""
    lengths = draw(12_000 * 24, 1)
    planner = Planner.from_profile(derive(POWERS), 24, 32_768, execution="static", sync=None)
    models = Workload(24, 32_768, 32_768).models(derive(POWERS))
    assert list(find_unproven(planner.plan(lengths), models)) == []
