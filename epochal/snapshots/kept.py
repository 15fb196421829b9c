"""What was read once is kept in memory, up to a number of bytes; what was not used for longest goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

Kept = TypeVar("Kept")


class KeptInMemory(Generic[Kept]):
    """A cache of things that never change, bounded by their sizes. Safe from any thread."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._kept: OrderedDict[Hashable, tuple[Kept, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> Kept | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Kept, size: int) -> None:
        """Keep ``value``, of ``size`` bytes; not at all when it is larger than a quarter of what may be kept."""
        if size > self._limit // 4:
            return
        with self._lock:
            before = self._kept.pop(key, None)
            self._size += size - (before[1] if before is not None else 0)
            self._kept[key] = (value, size)
            while self._size > self._limit:
                _, (_, gone) = self._kept.popitem(last=False)
                self._size -= gone

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._size = 0
