"""Side outputs: additional streams that an author's function writes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epochal.declarations.names import check_name
from epochal.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LATE, REJECTED = "late", "rejected"
LATE_OF_INPUT = ("left_late", "right_late")
"""The late sides of an operator that joins two streams, by input."""
RESERVED_SIDES = frozenset({LATE, REJECTED, *LATE_OF_INPUT})
"""Sides that the engine writes: rows that it removes from a stream because of their event time."""
MOST_SIDES = 100


class To:
    """A row for a side output, yielded among the output rows: ``yield To("alerts", (user, reason))``.

    ``row`` is a tuple in the order of the columns of the side, a named tuple, or a dict by name. In ``process_batch``
    it is a ``pyarrow.Table``.
    """

    __slots__ = ("row", "side")

    def __init__(self, side: str, row: Any) -> None:
        self.side = side
        self.row = row

    def __repr__(self) -> str:
        return f"To({self.side!r}, {self.row!r})"


def declared_sides(author: type) -> Mapping[str, str | StructType]:
    """The columns of each side that a class declares, in the order of declaration."""
    sides: Mapping[str, str | StructType] = getattr(author, "sides", {})
    return sides


def check_sides(author: type) -> None:
    """Check the side outputs of a class. Raises ``PipelineError`` with the fix."""
    sides: Any = declared_sides(author)
    if not isinstance(sides, Mapping):
        raise PipelineError(
            f"{author.__name__}.sides is {sides!r}: it must map the name of each side to its columns, such as "
            'sides = {"alerts": "user string, reason string"}.'
        )
    if len(sides) > MOST_SIDES:
        raise PipelineError(f"{author.__name__} has {len(sides)} sides; the maximum is {MOST_SIDES}.")
    for name, columns in sides.items():
        check_name(f"a side output of {author.__name__}", name)
        if name in RESERVED_SIDES:
            raise PipelineError(
                f"{author.__name__} cannot have a side output named {name!r}: this name is reserved for rows that the "
                "engine removes because of their event time. Rename it."
            )
        if isinstance(columns, str) and not columns.strip():
            raise PipelineError(f"side {name!r} of {author.__name__} has no columns: use 'column type, ..'.")
