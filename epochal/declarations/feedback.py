"""The declaration of a loop: its columns, the maximum number of hops, whether it runs in rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from epochal.declarations.ddl import parse_columns
from epochal.declarations.names import check_name
from epochal.errors import PipelineError
from epochal.state.table import Column

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

HOP: Final = "_hop"
"""The number of hops of a record: an additional column of a loop with a maximum number of hops."""
HOP_COLUMN: Final = Column(name=HOP, type="int")


@dataclass(frozen=True)
class Feedback:
    """A loop. ``aligned``: it runs in rounds; sources are not read while records are in flight."""

    name: str
    columns: tuple[Column, ...]
    max_hops: int | None
    aligned: bool

    @property
    def counts_hops(self) -> bool:
        """True if each record stores its own hop. In an aligned loop all records of a round have the same hop."""
        return self.max_hops is not None and not self.aligned

    @property
    def record(self) -> pa.Schema:
        """The columns of a record in the store."""
        return pa.schema([column.to_arrow() for column in (*self.columns, *([HOP_COLUMN] * self.counts_hops))])

    @property
    def output(self) -> pa.Schema:
        """The columns of the records of the stream: with the hop if the number of hops is bounded."""
        hop = [HOP_COLUMN] if self.max_hops is not None else []
        return pa.schema([column.to_arrow() for column in (*self.columns, *hop)])

    def details(self) -> dict[str, Any]:
        """The description, as JSON."""
        said: dict[str, Any] = {"columns": {column.name: column.type for column in self.columns}}
        return said | {"aligned": self.aligned} | ({} if self.max_hops is None else {"max_hops": self.max_hops})


def feedback(name: str, schema: str | StructType, max_hops: int | None, aligned: bool) -> Feedback:
    """Raises ``PipelineError``, ``SchemaError`` with the fix."""
    check_name("a loop", name)
    if not isinstance(aligned, bool):
        raise PipelineError(f"Loop {name!r}: aligned must be True or False, not {aligned!r}.")
    if max_hops is not None and (type(max_hops) is not int or max_hops < 1):
        raise PipelineError(
            f"Loop {name!r}: max_hops is the maximum number of hops of a record, an integer from 1, not {max_hops!r}."
        )
    columns = parse_columns(f"Loop {name!r}", schema)
    for column in columns:
        if column.default is not None:
            raise PipelineError(
                f"Loop {name!r}: column {column.name!r} has a default, which only columns of state can have. Leave it "
                "out."
            )
    return Feedback(name, columns, max_hops, aligned)
