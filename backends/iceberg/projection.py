"""Correction of the library's projection of rows, with which it writes and reads files.

pyiceberg 0.12 rebuilds lists of structs, and maps to structs, from their offsets, without their nulls: it writes and
reads an empty list where the value is null. :func:`keep_nulls` replaces the two methods in this process, also for other
users of the library, whose results become right.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyiceberg.io.pyarrow import ArrowProjectionVisitor

_METHODS: Final = ("list", "map")
_CORRECTED: Final = "__epochal_keeps_nulls__"


def keep_nulls() -> None:
    """Correct the library in this process. Idempotent."""
    for name in _METHODS:
        method = getattr(ArrowProjectionVisitor, name)
        if not hasattr(method, _CORRECTED):
            setattr(ArrowProjectionVisitor, name, _keeping_nulls(method))


def _keeping_nulls(method: Any) -> Any:
    def corrected(self: Any, type: Any, values: pa.Array | None, *parts: pa.Array | None) -> pa.Array | None:
        return _with_nulls_of(values, method(self, type, values, *parts))

    setattr(corrected, _CORRECTED, True)
    return corrected


def _with_nulls_of(values: pa.Array | None, projected: pa.Array | None) -> pa.Array | None:
    if values is None or projected is None or projected.null_count == values.null_count:
        return projected
    type = projected.type
    if pa.types.is_map(type):
        fields = [type.key_field, type.item_field]
        children = [pa.StructArray.from_arrays([projected.keys, projected.items], fields=fields)]
    else:
        children = [projected.values]
    # From the parts, since Arrow's functions drop the numbers of columns in the type.
    valid = pa.array(values.is_valid().to_numpy(zero_copy_only=False))
    offsets = pa.array(projected.offsets.to_numpy())
    buffers = [valid.buffers()[1], offsets.buffers()[1]]
    return pa.Array.from_buffers(type, len(projected), buffers, values.null_count, 0, children)
