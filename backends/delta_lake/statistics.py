"""Statistics of a data file in the log, from the footer of the Parquet file. Readers skip files by them.

A bound that is missing costs a reader time, a wrong one costs it rows. Bounds are therefore left out where formats
disagree: for binary and nested columns, for floating-point columns with NaN or an infinite bound, for decimals that a
double does not hold, and for long strings.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

LONGEST_STRING: Final = 64
"""Maximum number of characters of a bound."""
_MILLISECOND: Final = 1000
_DIGITS_OF_A_DOUBLE: Final = 15


def statistics_of(footer: pq.FileMetaData, schema: pa.Schema, with_nan: Collection[str]) -> str:
    """JSON of ``numRecords``, ``nullCount``, ``minValues`` and ``maxValues``. ``with_nan``: columns with NaN."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    places = {footer.row_group(0).column(at).path_in_schema: at for at in range(footer.num_columns)}
    for field in schema:
        at = places.get(field.name)
        if at is None:
            continue  # nested
        parts = [footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)]
        if any(part is None or not part.has_null_count for part in parts):
            continue
        nulls[field.name] = sum(part.null_count for part in parts)
        valued = [part for part in parts if part.num_values > 0]
        if not valued or field.name in with_nan or not all(part.has_min_max for part in valued):
            continue
        _put(least, field, min(part.min for part in valued), upwards=False)
        _put(greatest, field, max(part.max for part in valued), upwards=True)
    return json.dumps(
        {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls},
        ensure_ascii=False,
        separators=(",", ":"),
    )


def _put(bounds: dict[str, Any], field: pa.Field, value: Any, upwards: bool) -> None:
    bound = _bound(field.type, value, upwards)
    if bound is not None:
        bounds[field.name] = bound


def _bound(type: pa.DataType, value: Any, upwards: bool) -> Any:
    """The value as the log has it; ``None`` for one that is left out. ``upwards``: rounded up, as an upper bound."""
    if pa.types.is_signed_integer(type):
        return int(value)
    if pa.types.is_floating(type):
        return float(value) if abs(value) != float("inf") else None
    if pa.types.is_decimal(type):
        return float(value) if type.precision <= _DIGITS_OF_A_DOUBLE else None
    if pa.types.is_string(type):
        return value if len(value) <= LONGEST_STRING else None
    if pa.types.is_date32(type):
        return value.isoformat()
    if pa.types.is_timestamp(type):
        return _moment(value, upwards, zone="Z" if type.tz is not None else "")
    return None


def _moment(value: datetime, upwards: bool, zone: str) -> str | None:
    """A time in milliseconds, the unit of the log."""
    moment = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo is not None else value
    micros = moment.microsecond % _MILLISECOND
    shown = moment.replace(microsecond=moment.microsecond - micros)
    if upwards and micros:
        if shown.microsecond // _MILLISECOND == 999:
            return None  # the next second; rare enough to leave out
        shown = shown.replace(microsecond=shown.microsecond + _MILLISECOND)
    return f"{shown.isoformat(timespec='milliseconds')}{zone}"
