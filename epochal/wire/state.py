"""Look-ups and scans of state tables."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal, cast

from pydantic import Field, GetJsonSchemaHandler, SerializerFunctionWrapHandler, model_serializer
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from epochal.wire.bodies import Answer, Body, EpochNumber, Name, Open, UtcTime

MOST_KEYS = 10_000


Isolation = Literal["read_committed", "read_uncommitted"]


DEFAULT_WAIT_SECONDS = 5.0


WaitSeconds = Annotated[float, Field(ge=0, le=30, description="Timeout for min_epoch in seconds.")]


ARROW_STREAM = "application/vnd.apache.arrow.stream"


FOUND = "_found"
"""First column of look-up answers in Arrow: whether the key has a row."""


NEXT_CURSOR = "next_cursor"
"""Metadata field of Arrow schemas of scans, except on the last page."""


SINCE: Final = "since"
"""Metadata field of Arrow schemas, as JSON text; present if the JSON answer has the field."""


Since = Annotated[
    dict[str, int] | None,
    Field(
        exclude_if=lambda since: since is None,
        description="Aggregates that an upgrade added to existing keys, with the first epoch whose rows they "
        "count. Keys "
        "created and windows opened in this epoch or later are complete. The answer does not identify these keys, "
        "because rows do not store the creation of their key. Omitted if all columns count all rows.",
    ),
]


class StateKind(StrEnum):
    """Kind of state as declared by the author. All kinds are stored as full key -> value columns."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    AGGREGATE = "aggregate"


class StateScope(StrEnum):
    """Owner of a row: a key, one subtask, all subtasks, or one of several instances."""

    KEYED = "keyed"
    OPERATOR = "operator"
    UNION = "union"
    BROADCAST = "broadcast"
    PARTIAL = "partial"


class StateColumn(Answer):
    """A column with its Spark type, such as ``bigint``, ``decimal(10,2)`` or ``timestamp``.

    ``default``: value in rows that are older than the column.
    """

    name: str
    type: str
    default: Any = None
    since: int | None = Field(
        default=None,
        description="First epoch whose rows an aggregate counts that an upgrade added to existing keys. Keys "
        "and windows of "
        "later epochs are complete. Omitted if the column counts all rows.",
    )

    @model_serializer(mode="wrap")
    def _without_absent_fields(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        return {name: value for name, value in fields.items() if name not in ("default", "since") or value is not None}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # That of the fields: the serializer only omits some.
        return handler(cast(CoreSchema, {name: part for name, part in schema.items() if name != "serialization"}))


class ValueColumn(StateColumn):
    """A value column, with the name and type used in answers of look-ups."""

    internal: bool = Field(
        default=False,
        description="Stored to compute another column, such as `mean_sum` and `mean_count` of the average "
        "`mean`. Answers "
        "contain it; the command line does not show it.",
    )


class StateTableAnswer(Answer):
    """A state table of the latest committed epoch. ``rows``, ``branch`` and ``epoch`` are null if it is not
    queryable."""

    table: str
    operator: str
    kind: Open[StateKind]
    scope: Open[StateScope] = Field(
        description="Rows of scope `keyed` belong to a key. The key of `operator`, `union`, `broadcast` and "
        "`partial` rows "
        "is `_group`, their key group; look-ups of broadcast lists and maps omit it. For `partial` state it is the "
        "number of the instance; look-ups of values and maps without it return all instances."
    )
    key: list[StateColumn]
    sub_key: list[StateColumn] = Field(
        description="Columns that distinguish the rows of one key: a window's time, a map's key, a list's `_index`."
    )
    value: list[ValueColumn]
    queryable: bool
    rows: int | None
    branch: str | None
    epoch: int | None
    note: str | None = Field(
        default=None,
        description="Meaning of the rows, if they are panes of overlapping windows.",
    )


class InstanceValue(Answer):
    """Value of one instance of partial state."""

    instance: int
    value: dict[str, Any]


class StateValue(Answer):
    """``value`` for a complete key; ``entries`` (sub-key and value columns) for the operator's key of list and map
    state and of windows, in order of time. Dates, times, decimals, binaries and special floating-point values are
    strings."""

    table: str
    key: dict[str, Any]
    value: dict[str, Any] | None = None
    entries: list[dict[str, Any]] | None = None
    instances: list[InstanceValue] | None = Field(
        default=None,
        description="Values of all instances of partial state, if the key selects none. `value` is then merged by "
        "`reconcile`, or null if only the program can merge them.",
    )
    branch: str
    epoch: int
    isolation: Open[Isolation]
    since: Since = None


class LookupRequest(Body):
    """Up to 10,000 keys, each an object by column name; an operator's key column may be null."""

    keys: Annotated[list[dict[str, Any]], Field(max_length=MOST_KEYS)]
    isolation: Isolation = "read_committed"
    epoch: EpochNumber | None = None
    savepoint: Name | None = None
    tag: Name | None = None
    at: UtcTime | None = None
    min_epoch: EpochNumber | None = None
    wait_seconds: WaitSeconds = DEFAULT_WAIT_SECONDS


class StateLookup(Answer):
    """``values``: one value per key in the same order, null without a row, all from one epoch."""

    table: str
    branch: str
    epoch: int
    isolation: Open[Isolation]
    since: Since = None
    values: list[dict[str, Any] | None]


class ScannedRow(Answer):
    """A row. ``key``: all key columns, including those of a map or list."""

    key: dict[str, Any]
    value: dict[str, Any]


class Scan(Answer):
    """Rows in key order. All pages are read from the epoch of the first page."""

    table: str
    branch: str
    epoch: int
    isolation: Open[Isolation]
    items: list[ScannedRow]
    next_cursor: str | None
    since: Since = None
    note: str | None = Field(
        default=None,
        description="Meaning of the rows, if they are panes of overlapping windows.",
    )
