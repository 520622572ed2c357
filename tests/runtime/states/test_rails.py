"""Ranks of a node by the names of hosts."""

import pytest

from seqplan.runtime.states.rails import count_ranks_per_node


@pytest.mark.parametrize(
    ("names", "count"),
    [("aabb", 2), ("aaa", 3), ("a", 1), ("abcd", 1), ("aab", 1), ("abab", 1), ("aabbaa", 1)],
)
def test_ranks_of_a_node_follow_each_other(names: str, count: int) -> None:
    assert count_ranks_per_node(list(names)) == count
