"""The relaxation in finer detail: below every optimum, and an error in it shows."""

import numpy as np
import pytest
from instances import fleet, random_case, random_case_with_modes
from oracles.exhaustive import step_optimum

from seqplan.planner.bounds import resources
from seqplan.planner.bounds.certificate import certify_relaxed
from seqplan.planner.bounds.relaxation import FINE
from seqplan.planner.placement.fleet import ClassMode

SLACK = 1 + 1e-9


def find_largest_ratio(seed: int, number: int) -> float:
    """Of a bound over the optimum, of cases with stages."""
    rng = np.random.default_rng(seed)
    ratios: list[float] = []
    while len(ratios) < number:
        classes, batch = (random_case_with_modes if rng.random() < 0.7 else random_case)(rng)
        optimum = step_optimum(classes, batch, least=True)
        if not np.isfinite(optimum) or all(k.pp == 1 for k in classes):
            continue
        reached = optimum * float(rng.choice([1.0, 1.02, 1.3]))
        ratios.append(certify_relaxed(fleet(classes), batch, reached, detail=FINE) / optimum)
    return max(ratios)


def test_no_placement_ends_before_it() -> None:
    assert find_largest_ratio(0, 16) <= SLACK


def test_a_share_that_is_too_large_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    share = resources._share_of_mode

    def double_share(mode: ClassMode, *arguments: object) -> object:
        return 2 * share(mode, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(resources, "_share_of_mode", double_share)
    assert find_largest_ratio(1, 16) > SLACK
