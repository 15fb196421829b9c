"""Look-ups of many keys, one key group after another: each group's rows stay in the processor's cache meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from epochal.contracts.state import KeyGroups

Values = Iterable[bytes | None]


def look_up(
    groups: KeyGroups, keys: Sequence[bytes], of_group: Callable[[int, Sequence[bytes]], Values]
) -> list[bytes | None]:
    """The values of the keys, in their order; ``of_group`` answers for the keys of one key group."""
    order = np.argsort(groups.astype(np.int16), kind="stable")
    in_order = groups[order]
    arranged = np.empty(len(keys), object)
    arranged[:] = keys
    by_group: list[bytes] = arranged[order].tolist()
    bounds = [0, *(np.flatnonzero(np.diff(in_order)) + 1).tolist(), len(by_group)]
    found: list[bytes | None] = []
    for first, end in pairwise(bounds):
        if first < end:
            found.extend(of_group(int(in_order[first]), by_group[first:end]))
    values = np.empty(len(keys), object)
    values[order] = found
    return values.tolist()
