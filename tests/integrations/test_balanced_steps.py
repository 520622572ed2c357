"""Errors of balanced steps: those of the whole data set, before training."""

from typing import Any

import numpy as np
import pytest

from seqplan import Cost, Mode, balance
from seqplan.integrations import balanced_steps
from seqplan.integrations.balanced_steps import BalancedSteps

COST = Cost(5e-2, 1.0, 0.0)
LENGTHS = np.array([5, 9, 100, 7, 120])


@pytest.mark.parametrize(
    "options",
    [
        {"capacity": 90, "cost": COST},
        {"capacity": 119, "cost": COST, "pad_to": 8},
        {"capacity": 130, "cost": COST, "pad_to": 200},
        {"capacity": 130, "cost": COST, "pad_to": 0},
        {"capacity": 130, "cost": 3},
        {"capacity": 0, "cost": COST},
        {"cost": COST},
        {},
        {"modes": []},
        {"modes": [Mode("none", 60, COST), Mode("full", 110, COST)]},
        {"modes": [Mode("none", 130, COST)] * 2},
        {"modes": [Mode("none", 130, COST)], "capacity": 130},
        {"lengths": [5, 0], "capacity": 130, "cost": COST},
        {"lengths": [], "capacity": 130, "cost": COST},
    ],
    ids=str,
)
def test_errors_are_those_of_balancing_all_sequences(options: dict[str, Any]) -> None:
    lengths = options.pop("lengths", LENGTHS)
    with pytest.raises((TypeError, ValueError)) as expected:
        balance(lengths, 1, **options)
    with pytest.raises(type(expected.value)) as raised:
        BalancedSteps(lengths, 2, **options)
    assert str(raised.value) == str(expected.value)


def test_the_data_set_is_not_balanced_to_check_its_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    balanced = []

    def count(lengths: Any, *arguments: Any, **options: Any) -> Any:
        balanced.append(len(lengths))
        return balance(lengths, *arguments, **options)

    monkeypatch.setattr(balanced_steps, "balance", count)
    steps = BalancedSteps(np.full(1000, 50), 2, 130, COST)
    assert balanced == []
    next(steps.epoch(0, 1, lockstep=False))
    assert balanced == [2]
