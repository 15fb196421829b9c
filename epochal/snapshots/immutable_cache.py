"""Cache of immutable values with a size limit: row groups, manifests, the small files of packs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

Cached = TypeVar("Cached")


class SizedCache(Generic[Cached]):
    """Cache of immutable values with a size limit; the least recently used are removed first. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._entries: OrderedDict[Hashable, tuple[Cached, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> Cached | None:
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Cached, size: int) -> None:
        """Add ``value`` of ``size`` bytes, unless it is larger than a quarter of the limit."""
        if size > self._limit // 4:
            return
        with self._lock:
            before = self._entries.pop(key, None)
            self._size += size - (before[1] if before is not None else 0)
            self._entries[key] = (value, size)
            while self._size > self._limit:
                _, (_, gone) = self._entries.popitem(last=False)
                self._size -= gone

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._size = 0
