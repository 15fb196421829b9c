"""Which rows are the first of their keys, at once for all rows of a subtask; pure, on arrays."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.state.key_codec import KeyCodec
from epochal.tasks.row_digests import row_digests
from epochal.tasks.values import column_of

Integers = npt.NDArray[np.int64]
NEVER: Final = np.iinfo(np.int64).min
"""The time until which a key's rows are left out that has had none."""


def numbered_keys(keys: pa.Table) -> tuple[Integers, Integers]:
    """Of each row the number of its key, from 0, and of each key a row that has it; null is a key like others."""
    if keys.num_columns == 1:
        column = column_of(keys, keys.column_names[0])
    else:
        column = KeyCodec(keys.schema).encode_array(keys)
    encoded = column.dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    rows = np.empty(len(encoded.dictionary), np.int64)
    rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return codes, rows


def in_order(rows: pa.Table, codes: Integers, first: tuple[str, ...], descending: bool = False) -> Integers:
    """The rows' positions by key, then by the columns ``first``, then by all others: their order is that of the rows
    alone, nulls last. Columns that have no order are compared by a digest. Equal rows stay in the order that they have.

    ``descending``: of the columns ``first``, in which NaN is greater than all numbers, as in Spark.
    """
    direction = "descending" if descending else "ascending"
    columns: list[tuple[Any, str]] = [(pa.array(codes), "ascending")]
    for name in first:
        if pa.types.is_floating(rows[name].type):
            columns.append((pc.is_nan(rows[name]), direction))
        columns.append((rows[name], direction))
    others = [field for field in rows.schema if field.name not in first]
    columns += [(rows[field.name], "ascending") for field in others if not pa.types.is_nested(field.type)]
    nested = [field for field in others if pa.types.is_nested(field.type)]
    if nested:
        columns.append((row_digests(rows, pa.schema(nested)), "ascending"))
    table = pa.table({f"c{number}": column for number, (column, _) in enumerate(columns)})
    keys = [(f"c{number}", each) for number, (_, each) in enumerate(columns)]
    order: Integers = pc.sort_indices(table, keys).to_numpy().astype(np.int64)
    return order


def kept(codes: Integers, times: Integers, until: Integers, within: int) -> npt.NDArray[np.bool_]:
    """Which rows are kept of rows sorted by (code, time): of each key the first that is not before ``until[code]``, and
    from then on the next that is at least ``within`` later."""
    mask: npt.NDArray[np.bool_] = np.zeros(len(codes), np.bool_)
    if not len(codes):
        return mask
    moments, ranks = np.unique(times, return_inverse=True)
    width = len(moments) + 1
    places = codes * width + ranks
    begins = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    own = codes[begins]
    current = np.searchsorted(places, own * width + np.searchsorted(moments, until[own]))
    after = np.searchsorted(places, codes * width + np.searchsorted(moments, times + within))
    while len(own):
        there = current < len(codes)
        own, current = own[there], current[there]
        mine = codes[current] == own
        own, current = own[mine], current[mine]
        mask[current] = True
        current = after[current]
    return mask
