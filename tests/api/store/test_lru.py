"""Recently used values are kept, the least recently used goes first."""

from seqplan.api.store.lru import Lru


def test_the_least_lately_used_goes_first() -> None:
    lru: Lru[str, int] = Lru(2)
    lru.put("a", 1)
    lru.put("b", 2)
    assert lru.get("a") == 1
    lru.put("c", 3)
    assert [lru.get(key) for key in "abc"] == [1, None, 3]


def test_sizes_are_added_up() -> None:
    lru: Lru[int, str] = Lru(5, len)
    lru.put(0, "xx")
    lru.put(1, "xxx")
    lru.put(0, "x")  # in place of the earlier one, and now the latest used
    lru.put(2, "x")
    assert [lru.get(key) for key in range(3)] == ["x", "xxx", "x"]
    lru.put(3, "x")
    assert [lru.get(key) for key in range(4)] == [None, "xxx", "x", "x"]
    lru.drop(lambda key: key == 1)
    lru.put(4, "xxx")
    assert [lru.get(key) for key in range(1, 5)] == [None, "x", "x", "xxx"]


def test_one_that_is_larger_than_all_is_kept_by_itself() -> None:
    lru: Lru[int, str] = Lru(2, len)
    lru.put(0, "x")
    lru.put(1, "xxxx")
    assert [lru.get(key) for key in range(2)] == [None, "xxxx"]
