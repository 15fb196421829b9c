"""Values of an increasing column as positions: in JSON, in the database's own terms, and cut into ranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from epochal.backends.dbms.column_types import ColumnType, Family
from epochal.errors import SourceError

Value = int | float | Decimal | datetime | date


@dataclass(frozen=True)
class Positions:
    """How values of one column are written down and taken apart."""

    family: Family

    @classmethod
    def of(cls, name: str, type: ColumnType) -> Positions:
        """Raises ``SourceError`` for a column whose values have no order that every client agrees on."""
        if type.family not in _READ or type.shown.startswith("decimal_text"):  # ordered as text
            raise SourceError(
                f"Column {name!r} is {type.shown}; slices are cut by a whole number, a decimal, a time or a date."
            )
        return cls(type.family)

    def encode(self, value: Value | None) -> dict[str, Any]:
        """As it stands in a slice: JSON. ``None`` is before every row."""
        plain = value if value is None or isinstance(value, int) else _written(value)
        return {"value": plain}

    def decode(self, position: dict[str, Any]) -> Value | None:
        value = position.get("value")
        return None if value is None else _READ[self.family](value)

    def cut(self, first: Value, last: Value, parts: int) -> list[Value]:
        """The upper ends of at most ``parts`` ranges of like width that together end at ``last``."""
        width: Any = last - first  # type: ignore[operator]
        if isinstance(width, int):
            inner: list[Any] = [first + width * part // parts for part in range(1, parts)]  # type: ignore[operator]
        else:
            inner = [first + width * part / parts for part in range(1, parts)]
        return sorted({value for value in inner if first <= value < last} | {last})


def _written(value: Any) -> str:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    return value.isoformat() if isinstance(value, date | datetime) else str(value)


_READ: dict[Family, Callable[[Any], Value]] = {
    "integer": int,
    "decimal": Decimal,
    "timestamp": datetime.fromisoformat,
    "instant": datetime.fromisoformat,
    "date": date.fromisoformat,
}
