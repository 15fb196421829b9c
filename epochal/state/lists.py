"""Decomposition of list columns into elements, for merges and for computations per list."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.state.type_names import BeyondType
from epochal.state.types import arrow_type

AnyArray: TypeAlias = Any
"""``pyarrow.Array`` or ``ChunkedArray``."""

LIST, ELEMENT = "list", "element"


def lengths(lists: AnyArray) -> npt.NDArray[np.int64]:
    """The number of elements of each list; 0 for null."""
    counted: npt.NDArray[np.int64] = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return counted.astype(np.int64)


def elements(lists: AnyArray) -> pa.Table:
    """One row per element: :data:`ELEMENT`, and the position of its :data:`LIST`. A null list has no rows."""
    lists = pa.chunked_array([lists]) if isinstance(lists, pa.Array) else lists
    # Not list_parent_indices: it also counts the elements behind a null list, which list_flatten omits.
    parents = np.repeat(np.arange(len(lists)), lengths(lists))
    return pa.table({LIST: parents, ELEMENT: pc.list_flatten(lists)})


def totals(lists: AnyArray, type: str) -> AnyArray:
    """The sum of each list as ``type``, a bigint, double or decimal; null for a list without elements.

    Raises ``OverflowError`` if a sum does not fit into ``type``.
    """
    rows = elements(lists)
    summed, values = arrow_type(type), rows[ELEMENT]
    if not pa.types.is_floating(summed):
        scale = summed.scale if pa.types.is_decimal(summed) else 0
        values = values.cast(pa.decimal256(76, scale))
    else:
        values = values.cast(summed)
    sums = pa.table({LIST: rows[LIST], ELEMENT: values}).group_by(LIST).aggregate([(ELEMENT, "sum")])
    places = pc.index_in(pa.array(np.arange(len(lists))), sums[LIST])
    try:
        return sums[f"{ELEMENT}_sum"].take(places).cast(summed)
    except pa.ArrowInvalid as error:
        raise BeyondType("the sum", type) from error
