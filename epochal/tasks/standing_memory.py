"""``remember`` of standing queries: what the aggregates of a group were in its window before (RBEA, thesis 4.4.1).

A group's last window is kept by query and group, and forgotten when so many windows of the query had no row of it. So
what is remembered is what ``lag`` gives over the query's results before HAVING, in whatever epochs they come out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from epochal.standing.active import StandingQuery
from epochal.state.access import TableAccess
from epochal.state.column_bytes import Mask
from epochal.tasks.standing_layout import Integers
from epochal.tasks.standing_partials import GROUP, QUERY, WINDOW_END
from epochal.tasks.values import column_of
from epochal.tasks.windows import times_of, timestamps

VALUES, FORGOTTEN_AT = "values", "forgotten_at"


@dataclass(frozen=True)
class Recalled:
    """``before``: of each aggregate its values in the windows before, null where there is none to remember. ``columns``
    of the state table: the full key and the values of the groups that came."""

    before: dict[str, list[Any]]
    columns: tuple[pa.Array, ...]


def recalled(
    query: StandingQuery,
    access: TableAccess,
    key_group: int,
    groups: pa.StringArray,
    ends: Integers,
    values: Sequence[Sequence[Any]],
) -> Recalled:
    """``groups``, ``ends`` and ``values``: of the windows that close in the epoch, one for each group and window; the
    values of all aggregates, as JSON has them."""
    places = {each.name: place for place, each in enumerate(query.query.aggregates) if each in query.query.recalled}
    encoded = groups.dictionary_encode()
    codes: Integers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    order = np.lexsort((ends, codes))
    is_first = np.diff(codes[order], prepend=-1) != 0
    firsts, others = order[is_first], np.flatnonzero(~is_first)
    sources: list[Sequence[Any] | None] = [None] * len(codes)
    for row, earlier in zip(order[others].tolist(), order[others - 1].tolist(), strict=True):
        if ends[row] - ends[earlier] <= query.query.reach:
            sources[row] = [values[earlier][place] for place in places.values()]
    of_groups = encoded.dictionary.take(pa.array(codes[firsts]))
    stored, kept = _stored(query, access, key_group, of_groups, ends[firsts])
    for row, text in zip(firsts[stored].tolist(), kept, strict=True):
        said = json.loads(text)
        sources[row] = [said[name] for name in places]
    before = {
        name: [None if source is None else source[position] for source in sources]
        for position, name in enumerate(places)
    }
    lasts = order[np.append(np.flatnonzero(is_first)[1:] - 1, len(order) - 1)] if len(order) else order
    texts = [json.dumps({name: values[row][place] for name, place in places.items()}) for row in lasts.tolist()]
    columns = (
        pa.array(np.full(len(lasts), query.id), pa.int64()),
        groups.take(pa.array(lasts)),
        timestamps(ends[lasts]),
        timestamps(ends[lasts] + query.query.reach),
        pa.array(texts, pa.string()),
    )
    return Recalled(before, columns)


def _stored(
    query: StandingQuery, access: TableAccess, key_group: int, groups: pa.StringArray, ends: Integers
) -> tuple[Mask, list[str]]:
    """Which groups, that come with windows which end at ``ends``, are remembered; and the values of those."""
    keys = pa.table({QUERY: pa.array(np.full(len(groups), query.id), pa.int64()), GROUP: groups})
    found, rows = access.get(keys, np.full(len(groups), key_group, np.int32))
    held = np.array(found, np.bool_)
    was = times_of(column_of(rows.filter(pa.array(held)), WINDOW_END))
    # What came before the query was resumed is no part of it.
    holds = (ends[held] - was <= query.query.reach) & (was - query.query.size >= query.since)
    held[held] = holds
    return held, column_of(rows.filter(pa.array(held)), VALUES).to_pylist()
