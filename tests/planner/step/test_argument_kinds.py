"""Arguments of another kind are rejected by name; lengths come from any array or tensor."""

import numpy as np
import pytest
from step_lengths import CODE

import seqplan
from seqplan import Cost, Planner, balance, digest
from seqplan.plans.lint import lint

COST = Cost(1e-6, 0.05, 20.0)
PROFILE = "llama-7b-a800-80gb"


def test_an_id_that_is_drawn_twice_counts_twice() -> None:
    planner = Planner.from_profile(PROFILE, 8, 8192, prove=False)
    plan = planner.plan([100, 50, 100], ids=[7, 3, 7])
    assert plan.ids == (7, 3, 7)
    assert plan.tokens == 250
    assert lint(plan, None) == []


def test_lengths_that_are_no_list() -> None:
    planner = Planner.from_profile(PROFILE, 8, 8192, prove=False)
    with pytest.raises(TypeError, match="step 0: lengths: 9"):
        planner.plan(9)  # type: ignore[arg-type]


def test_a_seed_of_numpy_is_a_seed() -> None:
    plan = Planner.from_profile(PROFILE, 8, 8192, prove=False, seed=np.int64(5)).plan([100])
    assert plan == Planner.from_profile(PROFILE, 8, 8192, prove=False, seed=5).plan([100])


def test_lengths_of_any_kind() -> None:
    torch = pytest.importorskip("torch")
    lengths = [700, 1500, 90, 4000]
    planned = Planner.from_profile(PROFILE, 8, 8192, prove=False).plan(lengths)
    balanced = balance(lengths, 2, 4096, COST)
    whole = np.array([8, 8192, 2, 4096])
    assert Planner.from_profile(PROFILE, *whole[:2], prove=False).plan(lengths) == planned
    assert balance(lengths, *whole[2:], COST) == balanced
    kinds = [
        np.array(lengths, dtype=np.uint16),
        np.array(lengths, dtype=np.float32),
        torch.tensor(lengths),
        torch.tensor(lengths, dtype=torch.int32),
        [torch.tensor(length) for length in lengths],
        [np.int32(length) for length in lengths],
        tuple(lengths),
        range(100, 104),
    ]
    for kind in kinds[:-1]:
        assert balance(kind, 2, 4096, COST) == balanced
        again = Planner.from_profile(PROFILE, 8, 8192, prove=False).plan(kind)
        assert digest(again) == digest(planned)
    assert balance(kinds[-1], 2, 4096, COST).lengths == (100, 101, 102, 103)
    data = CODE[:500]
    proposals = [
        seqplan.make_proposal(
            seqplan.find_profile(PROFILE), seqplan.Workload(4, 8192, 20_000), kind
        )
        for kind in (data, torch.tensor(data.astype(np.int64)))
    ]
    assert proposals[0].to_json() == proposals[1].to_json()
