"""The closed form of Eq. 4's relaxation against the table that the paper fills."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.proposal.eq4 import continuous_proposal, integer_strategies
from seqplan.plans.scheme import Scheme

LARGE = SchemeModel(Scheme(tp=2), Latency(0.001, 0.3, 0.5), 40)
SMALL = SchemeModel(Scheme(), Latency(0.002, 0.4, 0.2), 12)
DEEP = SchemeModel(Scheme(pp=2), Latency(0.0, 0.25, 0.1), 24)


def literal(models: list[SchemeModel], counts: list[tuple[int, float]], gpus: int) -> float:
    """t[gpus][longest] of Eq. 4 with GPUs in tenths of the grid's step, cell by cell."""
    cells = 10 * gpus
    length = [n for n, _ in counts]
    work = np.array(
        [[count * model.latency.micro_batch_ms([n]) for n, count in counts] for model in models]
    )
    table = np.full((cells + 1, len(counts) + 1), np.inf)
    table[:, 0] = 0.0
    for n in range(1, cells + 1):
        for top in range(1, len(counts) + 1):
            for k, model in enumerate(models):
                if length[top - 1] > model.max_sequence:
                    continue
                for before in range(n):
                    pipelines = (n - before) / 10 / model.scheme.gpus
                    for low in range(top):
                        time = work[k, low:top].sum() / pipelines
                        table[n, top] = min(table[n, top], max(table[before, low], time))
    return float(table[cells, len(counts)])


@pytest.mark.parametrize("models", [[LARGE, SMALL], [LARGE, DEEP, SMALL], [LARGE]])
@pytest.mark.parametrize(
    "counts", [[(3, 10.0), (12, 4.0), (30, 1.0)], [(1, 50.0), (13, 2.0), (25, 3.0), (40, 0.5)]]
)
def test_the_grid_comes_close_from_above(
    models: list[SchemeModel], counts: list[tuple[int, float]]
) -> None:
    gpus = 3
    lengths = np.array([n for n, _ in counts])
    proposal = continuous_proposal(models, lengths, np.array([count for _, count in counts]))
    for i in range(len(counts)):
        exact = proposal.gpu_ms[i] / gpus
        on_grid = literal(models, counts[: i + 1], gpus)
        assert exact <= on_grid * (1 + 1e-9)
        assert on_grid <= exact * 1.25


def test_shares_and_choices_add_up() -> None:
    lengths = np.array([3, 12, 13, 30])
    proposal = continuous_proposal([LARGE, SMALL], lengths, np.array([10.0, 4.0, 2.0, 1.0]))
    assert proposal.gpu_ms == pytest.approx(proposal.gpu_ms_by_scheme.sum(axis=1))
    assert proposal.choice.tolist() == [1, 1, 0, 0]
    by_hand = 10 * (0.018 + 1.2 + 0.2) + 4 * (0.288 + 4.8 + 0.2)
    assert proposal.gpu_ms[1] == pytest.approx(by_hand)


def test_a_length_that_nothing_holds_has_no_time() -> None:
    proposal = continuous_proposal([LARGE, SMALL], np.array([5, 41, 50]), np.ones(3))
    assert np.isfinite(proposal.gpu_ms).tolist() == [True, False, False]
    assert proposal.choice.tolist() == [1, -1, -1]


@settings(max_examples=45)
@given(
    st.lists(st.tuples(st.integers(1, 45), st.floats(0, 100)), min_size=1, max_size=20),
    st.integers(1, 17),
)
def test_integer_strategies_fit_the_gpus_and_hold_their_length(
    pairs: list[tuple[int, float]], gpus: int
) -> None:
    models = [LARGE, DEEP, SMALL]
    totals: dict[int, float] = {}
    for length, count in pairs:
        totals[length] = totals.get(length, 0.0) + count + 0.1
    lengths = np.array(sorted(totals))
    counts = np.array([totals[n] for n in sorted(totals)])
    reach = {model.scheme: model.max_sequence for model in models}
    strategies = integer_strategies(continuous_proposal(models, lengths, counts), models, gpus)
    for strategy, longest in strategies.items():
        assert 0 < strategy.gpus <= gpus
        assert max(reach[scheme] for scheme in strategy) >= longest
        assert longest in totals
