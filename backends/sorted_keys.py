"""The keys of a dictionary in order, and kept in order through its changes at the price of what changes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

_MOST_DELETED = 0.25
"""Of all keys in order; when more of them are deleted, the rest is gathered."""


class _Kept(NamedTuple):
    """Replaced as one, so that two readers may both bring it into order."""

    in_order: Sequence[bytes]
    added: set[bytes]
    """None of them is in order yet."""
    deleted: set[bytes]
    """All of them are in order still."""


class SortedKeys:
    """Keys in the order of their bytes.

    New keys are put in their places when the order is next asked for, by Python's sort, for which what is in order
    already is a single run. Deleted keys stay where they are, and are passed over.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._kept = _Kept(sorted(keys), set(), set())

    def copy(self) -> SortedKeys:
        other = SortedKeys(())
        in_order, added, deleted = self._kept
        other._kept = _Kept(in_order, set(added), set(deleted))
        return other

    def change(self, before: Container[bytes], keys: Iterable[bytes], values: Iterable[bytes | None]) -> None:
        """Take changes of a dictionary whose keys were ``before``; a value of ``None`` deletes. No key comes twice."""
        _, added, deleted = self._kept
        for key, value in zip(keys, values, strict=True):
            if (value is None) is not (key in before):
                continue
            come, go = (added, deleted) if value is not None else (deleted, added)
            if key in go:
                go.discard(key)
            else:
                come.add(key)

    def between(
        self, low: Iterable[bytes | None], high: Iterable[bytes | None], limit: int | None
    ) -> tuple[list[int], list[bytes]]:
        """The keys of ranges, after one another: of each those from ``low`` on and below ``high``, its first ``limit``.

        ``None`` is open. First how many there are of each range.
        """
        in_order, _, deleted = self._kept = self._settled()
        every = len(in_order)
        counts: list[int] = []
        keys: list[bytes] = []
        for start, stop in zip(low, high, strict=True):
            first = 0 if start is None else bisect_left(in_order, start)
            end = every if stop is None else bisect_left(in_order, stop, first)
            before = len(keys)
            if deleted:
                keys += islice((key for key in in_order[first:end] if key not in deleted), limit)
            else:
                keys += in_order[first : end if limit is None else min(end, first + limit)]
            counts.append(len(keys) - before)
        return counts, keys

    def _settled(self) -> _Kept:
        in_order, added, deleted = kept = self._kept
        if added:
            in_order = sorted([*in_order, *sorted(added)])
        elif len(deleted) <= _MOST_DELETED * len(in_order):
            return kept
        if len(deleted) > _MOST_DELETED * len(in_order):
            return _Kept([key for key in in_order if key not in deleted], set(), set())
        return _Kept(in_order, set(), deleted)
