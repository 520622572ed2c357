"""The search over strategies on ranks of different speeds, against all strategies there are."""

from itertools import product

import numpy as np
import pytest
from step_lengths import CODE

from seqplan import Planner, Scheme, Strategy, Workload, find_profile
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import cheap_bound_ms
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.fill import Filler
from seqplan.planner.placement.fleet import Models
from seqplan.planner.placement.slowdown import Slowdown, make_slow_fleet
from seqplan.planner.strategies.search import list_changes
from seqplan.planner.strategies.search import list_strategies as list_few

SCHEMES = [Scheme(), Scheme(ulysses=2), Scheme(ulysses=4), Scheme(ulysses=8)]
PROFILE = find_profile("llama3-8b-h100-80gb")


def list_strategies(gpus: int) -> list[Strategy]:
    """List every strategy of the schemes on as many ranks at most."""
    counts = product(*(range(gpus // scheme.gpus + 1) for scheme in SCHEMES))
    strategies = (Strategy.from_counts(dict(zip(SCHEMES, of, strict=True))) for of in counts)
    return [strategy for strategy in strategies if 0 < strategy.gpus <= gpus]


def find_least_ms(batch: Batch, models: Models, speeds: Slowdown) -> float:
    """Find the least time of any strategy of the schemes."""
    least = float("inf")
    for strategy in list_strategies(8):
        placed = speeds.place(strategy)
        if placed is None:
            continue
        fleet = make_slow_fleet(strategy, models, [factor for _, factor in placed])
        if fleet.max_sequence >= batch.longest:
            filling = dispatch(Filler(fleet, batch), cheap_bound_ms(fleet.classes, batch))
            assert filling is not None
            least = min(least, filling.objective_ms)
    return least


def test_plans_are_near_the_best_of_all_strategies() -> None:
    profile = PROFILE.keep_schemes(set(SCHEMES))
    over = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        factors: list[float | None] = [1.0] * 8
        for rank in rng.choice(8, int(rng.integers(1, 4)), replace=False).tolist():
            factors[rank] = (1.1, 1.5, 3.0, None)[int(rng.integers(4))]
        lengths = rng.choice(CODE[CODE <= 32_768], int(rng.integers(2, 40))).tolist()
        planner = Planner.from_profile(profile, 8, 32_768, sync=None, slowdown=factors)
        models = Workload(8, 32_768, 32_768).leave_out(factors.count(None)).models(profile)
        batch = Batch(0, tuple(range(len(lengths))), tuple(lengths))
        least_ms = find_least_ms(batch, models, Slowdown(tuple(factors)))
        over.append(planner.plan(lengths).predicted_ms / least_ms)
    assert max(over) < 1.005
    assert np.mean(over) < 1.001


def test_few_strategies_are_all_listed() -> None:
    schemes = [scheme for scheme in SCHEMES if scheme.gpus <= 5]
    listed = list_few(schemes, 5)
    assert listed is not None
    assert sorted(map(str, listed)) == sorted(map(str, list_strategies(5)))
    assert list_few(SCHEMES, 64) is None


@pytest.mark.parametrize("gpus", [5, 8])
def test_changes_lead_from_any_strategy_to_any_other(gpus: int) -> None:
    schemes = [scheme for scheme in SCHEMES if scheme.gpus <= gpus]
    whole = set(list_strategies(gpus))
    for start in (Strategy.from_counts({Scheme(): 1}), Strategy.from_counts({schemes[-1]: 1})):
        reached, waiting = {start}, [start]
        while waiting:
            for changed in list_changes(waiting.pop(), schemes, gpus):
                assert 0 < changed.gpus <= gpus
                if changed not in reached:
                    reached.add(changed)
                    waiting.append(changed)
        assert reached == whole
