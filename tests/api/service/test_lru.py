"""What is used lately is kept, what is used least lately goes first."""

from __future__ import annotations

from seqplan.api.service.lru import Lru


def test_the_least_lately_used_goes_first() -> None:
    kept: Lru[str, int] = Lru(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert [kept.get(key) for key in "abc"] == [1, None, 3]


def test_sizes_are_added_up() -> None:
    kept: Lru[int, str] = Lru(5, len)
    kept.put(0, "xx")
    kept.put(1, "xxx")
    kept.put(0, "x")  # in place of the earlier one, and now the latest used
    kept.put(2, "x")
    assert [kept.get(key) for key in range(3)] == ["x", "xxx", "x"]
    kept.put(3, "x")
    assert [kept.get(key) for key in range(4)] == [None, "xxx", "x", "x"]
    kept.drop(lambda key: key == 1)
    kept.put(4, "xxx")
    assert [kept.get(key) for key in range(1, 5)] == [None, "x", "x", "xxx"]


def test_one_that_is_larger_than_all_is_kept_by_itself() -> None:
    kept: Lru[int, str] = Lru(2, len)
    kept.put(0, "x")
    kept.put(1, "xxxx")
    assert [kept.get(key) for key in range(2)] == [None, "xxxx"]
