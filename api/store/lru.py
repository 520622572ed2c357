"""Values by key of which only the latest used are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def _unit_size(value: Any) -> int:
    return 1


class Lru(Generic[Key, Value]):
    """Keeps values up to ``most`` in total ``size``, or one larger value.

    The least lately used is forgotten first. May be used from threads.
    """

    def __init__(self, most: int, size: Callable[[Value], int] = _unit_size) -> None:
        self._most = most
        self._size = size
        self._total = 0
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        """Return the value, which is now the latest used; None if it is unknown."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def find(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value; of an unknown one make it, perhaps in several threads at once."""
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> None:
        """Store the value as the latest used, replacing its key's earlier one."""
        with self._lock:
            if key in self._values:
                self._total -= self._size(self._values.pop(key))
            self._values[key] = value
            self._total += self._size(value)
            while self._total > self._most and len(self._values) > 1:
                self._total -= self._size(self._values.popitem(last=False)[1])

    def drop(self, unwanted: Callable[[Key], bool]) -> None:
        """Forget the values whose keys are unwanted."""
        with self._lock:
            for key in [key for key in self._values if unwanted(key)]:
                self._total -= self._size(self._values.pop(key))
