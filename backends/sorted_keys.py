"""The keys of a dictionary in order, and kept in order through its changes at a price that goes by what changes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable
from itertools import islice

_MOST_RECENT, _MOST_DELETED = 1 / 8, 1 / 4
"""Of the keys in order: with more that came lately, or that are gone, all are gathered in one list again."""


class SortedKeys:
    """Keys in the order of their bytes. Reading changes nothing.

    Keys that came lately are a short list beside the long one. Keys that are gone stay where they are, and are passed
    over.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._in_order = sorted(keys)
        self._recent: list[bytes] = []
        self._deleted: set[bytes] = set()

    def copy(self) -> SortedKeys:
        other = SortedKeys(())
        other._in_order, other._recent = list(self._in_order), list(self._recent)
        other._deleted = set(self._deleted)
        return other

    def change(self, before: Container[bytes], keys: Iterable[bytes], values: Iterable[bytes | None]) -> None:
        """Take changes of a dictionary whose keys were ``before``; a value of ``None`` deletes. No key comes twice."""
        deleted, recent = self._deleted, self._recent
        for key, value in zip(keys, values, strict=True):
            if (value is None) is not (key in before):
                continue
            if value is None:
                deleted.add(key)
            elif key in deleted:
                deleted.discard(key)
            else:
                recent.append(key)
        recent.sort()
        every = len(self._in_order)
        if len(recent) > _MOST_RECENT * every or len(deleted) > _MOST_DELETED * every:
            self._in_order = sorted(key for part in (self._in_order, recent) for key in part if key not in deleted)
            self._recent, self._deleted = [], set()

    def between(
        self, low: Iterable[bytes | None], high: Iterable[bytes | None], limit: int | None
    ) -> tuple[list[int], list[bytes]]:
        """The keys of ranges, after one another: of each those from ``low`` on and below ``high``, its first ``limit``.

        ``None`` is open. First how many there are of each range.
        """
        in_order, recent, deleted = self._in_order, self._recent, self._deleted
        counts: list[int] = []
        keys: list[bytes] = []
        for start, stop in zip(low, high, strict=True):
            before = len(keys)
            first, end = _bounds(in_order, start, stop)
            first_recent, end_recent = _bounds(recent, start, stop) if recent else (0, 0)
            if not deleted and first_recent == end_recent:
                keys += in_order[first : end if limit is None else min(end, first + limit)]
            else:
                found = sorted(in_order[first:end] + recent[first_recent:end_recent])
                keys += islice((key for key in found if key not in deleted), limit)
            counts.append(len(keys) - before)
        return counts, keys


def _bounds(keys: list[bytes], low: bytes | None, high: bytes | None) -> tuple[int, int]:
    first = 0 if low is None else bisect_left(keys, low)
    return first, len(keys) if high is None else bisect_left(keys, high, first)
