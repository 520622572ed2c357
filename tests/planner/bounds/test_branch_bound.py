"""The bound that branches over long sequences: below every optimum, and errors in it show."""

from collections.abc import Callable

import numpy as np
import pytest
from instances import fleet, random_case, random_case_with_modes
from oracles.exhaustive import step_optimum

from benchmarks import branch_bound
from benchmarks.branch_bound import branch_bound_ms
from seqplan.planner.bounds import resources
from seqplan.planner.bounds.certificate import certify_relaxed
from seqplan.planner.bounds.relaxation import FINE
from seqplan.planner.placement.fleet import ClassMode

SLACK = 1 + 1e-9


@pytest.fixture(autouse=True)
def bound_few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch_bound, "MOST_BOUNDS", 8)


def find_ratios(seed: int, number: int) -> list[tuple[float, float]]:
    """Bounds over the optimum of cases with stages: branched, and of one finer relaxation."""
    rng = np.random.default_rng(seed)
    ratios = []
    while len(ratios) < number:
        classes, batch = (random_case_with_modes if rng.random() < 0.7 else random_case)(rng)
        optimum = step_optimum(classes, batch, least=True)
        if not np.isfinite(optimum) or all(k.pp == 1 for k in classes):
            continue
        some, reached = fleet(classes), optimum * float(rng.choice([1.0, 1.02, 1.3]))
        finer = certify_relaxed(some, batch, reached, detail=FINE)
        ratios.append((branch_bound_ms(some, batch, reached) / optimum, finer / optimum))
    return ratios


def test_no_placement_ends_before_it() -> None:
    ratios = np.array(find_ratios(0, 16))
    assert ratios.max() <= SLACK
    assert (ratios[:, 0] >= ratios[:, 1] / SLACK).all()


def forget_cases(fleet: branch_bound.Fleet, length: int) -> list[branch_bound.Fleet]:
    return _divide(fleet, length)[:1] * 2


def double_shares(mode: ClassMode, *arguments: object) -> object:
    return 2 * _share_of_mode(mode, *arguments)  # type: ignore[arg-type]


_divide: Callable[..., list[branch_bound.Fleet]] = branch_bound._divide
_share_of_mode: Callable[..., object] = resources._share_of_mode


@pytest.mark.parametrize(
    ("module", "name", "error"),
    [(branch_bound, "_divide", forget_cases), (resources, "_share_of_mode", double_shares)],
)
def test_planted_errors_are_noticed(
    module: object, name: str, error: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, error)
    assert np.array(find_ratios(1, 8)).max() > SLACK
