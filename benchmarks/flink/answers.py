"""The rows that a query has written in Flink: the net result of inserted, updated and deleted rows."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql.types import DataType, DecimalType, StructType, TimestampType

from benchmarks.flink.queries import UPDATES


def result(query: str, folder: Path, schema: StructType) -> Counter[tuple[Any, ...]]:
    """The rows in ``folder`` in the order of the columns of ``schema``, which is that of the oracle."""
    rows: Counter[tuple[Any, ...]] = Counter()
    for file in sorted(folder.glob("part-*")):
        with file.open() as lines:
            for line in lines:
                change = json.loads(line, parse_float=Decimal)
                if query not in UPDATES:
                    rows[_row(change, schema)] += 1
                    continue
                # An update is two lines: the row before with the operation d, and the row after with c.
                if change["before"] is not None:
                    rows[_row(change["before"], schema)] -= 1
                if change["after"] is not None:
                    rows[_row(change["after"], schema)] += 1
    if negative := [row for row, number in rows.items() if number < 0]:
        raise ValueError(f"{query} deleted a row that it had not written: {negative[0]}")
    return +rows


def _row(values: dict[str, Any], schema: StructType) -> tuple[Any, ...]:
    return tuple(_value(values.get(field.name), field.dataType) for field in schema)


def _value(value: Any, type: DataType) -> Any:
    if value is None:
        return None
    if isinstance(type, TimestampType):
        # Flink writes instants with Z and the bounds of windows without, both in UTC.
        return (
            datetime.fromisoformat(value.replace("Z", "+00:00")).astimezone(UTC)
            if "Z" in value
            else (datetime.fromisoformat(value).replace(tzinfo=UTC))
        )
    if isinstance(type, DecimalType):
        return Decimal(value).quantize(Decimal(1).scaleb(-type.scale))
    return value
