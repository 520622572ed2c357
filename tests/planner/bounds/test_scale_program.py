"""The program of a step keeps its optimum without states and resources that others replace."""

import numpy as np

from seqplan.planner.bounds.linear_program import minimize
from seqplan.planner.bounds.scale_program import find_limiting_resources, find_needed_states


def _least_scale(share: np.ndarray, eligible: np.ndarray, sizes: np.ndarray) -> float | None:
    """Solve for the least Σ pipelines · size, each demand of each state in full."""
    states, resources, groups = share.shape
    parts = list(zip(*np.nonzero(eligible), strict=True))
    columns, rows = len(parts) + states, states * resources
    matrix = np.zeros((rows + groups, columns))
    for column, (state, group) in enumerate(parts):
        matrix[state * resources : (state + 1) * resources, column] = share[state, :, group]
        matrix[rows + group, column] = 1
    for row in range(rows):
        matrix[row, len(parts) + row // resources] = -1
    at_row, at_column = np.indices(matrix.shape)
    block = (matrix.ravel(), at_row.ravel(), at_column.ravel())
    objective = np.concatenate([np.zeros(len(parts)), sizes])
    solved = minimize(objective, [block], np.zeros(rows), np.ones(groups))
    return None if solved is None else round(solved.objective, 6)


def test_the_optimum_stays() -> None:
    random = np.random.default_rng(0)
    left_out = 0
    for _ in range(40):
        share = random.integers(0, 4, (6, 3, 3)) / 4
        eligible = random.random((6, 3)) < 0.8
        eligible[0] = True
        sizes = random.choice([1.0, 2.0], 6)
        whole = _least_scale(share, eligible, sizes)
        needed = find_needed_states(share, eligible, sizes)
        limiting = find_limiting_resources(share[needed], eligible[needed])
        left_out += (~needed).sum() + (~limiting).sum()
        kept = np.where(limiting[..., None], share[needed], 0.0)
        assert _least_scale(kept, eligible[needed], sizes[needed]) == whole
        assert limiting.any(axis=1).all()
    assert left_out > 100


def test_of_equal_states_and_resources_one_stays() -> None:
    share, eligible = np.full((3, 2, 2), 0.5), np.ones((3, 2), dtype=bool)
    assert find_needed_states(share, eligible, np.ones(3)).tolist() == [True, False, False]
    assert find_limiting_resources(share, eligible).tolist() == [[False, True]] * 3
