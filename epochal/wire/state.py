"""Requests and answers of look-ups, as the documentation shows them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from epochal.wire.bodies import Answer, Body, EpochNumber, Name, Open, UtcTime

MOST_KEYS = 10_000


Isolation = Literal["read_committed", "read_uncommitted"]


DEFAULT_WAIT_SECONDS = 5.0


WaitSeconds = Annotated[float, Field(ge=0, le=30, description="Wait at most so long for min_epoch.")]


ARROW_STREAM = "application/vnd.apache.arrow.stream"


FOUND = "_found"
"""The first column of a look-up's answer in Arrow: whether there is a row with the key."""


NEXT_CURSOR = "next_cursor"
"""In the metadata of a scan's schema in Arrow, unless the page is the last one."""


SINCE: Final = "since"
"""In the metadata of an Arrow schema, as JSON text, where the answer in JSON has the field."""


Since = Annotated[
    dict[str, int] | None,
    Field(
        exclude_if=lambda since: since is None,
        description="By column: the aggregates that an upgrade added to existing keys, with the first epoch that they "
        "count rows of, as the snapshot that answers has them. Keys that were created, and windows that opened, in "
        "this epoch or later are complete. The answer does not say which keys these are: a row does not store when its "
        "key was created. Left out where all columns count all rows.",
    ),
]


class StateKind(StrEnum):
    """How the author sees the state. All kinds are stored alike: full key -> value columns."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    AGGREGATE = "aggregate"


class StateScope(StrEnum):
    """Whose a row is: a key's, one subtask's, that of all subtasks, or that of one of several instances."""

    KEYED = "keyed"
    OPERATOR = "operator"
    UNION = "union"
    BROADCAST = "broadcast"
    PARTIAL = "partial"


class StateColumn(Answer):
    """A column with its Spark type as Spark spells it: ``bigint``, ``decimal(10,2)``, ``timestamp``.

    ``default``, where there is one, is what rows from before the column was there have.
    """

    name: str
    type: str
    default: Any = None
    since: int | None = Field(
        default=None,
        description="Of an aggregate that an upgrade added to existing keys: it counts rows from this epoch on. Keys "
        "and windows of later epochs are complete. Left out: the column counts all rows.",
    )

    @model_serializer(mode="wrap")
    def _without_absent_fields(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        return {name: value for name, value in fields.items() if name not in ("default", "since") or value is not None}


class ValueColumn(StateColumn):
    """A value column; its name and type as in the answers of look-ups."""

    internal: bool = Field(
        default=False,
        description="Kept so that another column can be computed from it: `mean_sum` and `mean_count` of the average "
        "`mean`. Answers have it, beside what it is kept for; people are not shown it.",
    )


class StateTableAnswer(Answer):
    """A state table of the latest committed epoch. ``rows``, ``branch`` and ``epoch`` are null if not queryable."""

    table: str
    operator: str
    kind: Open[StateKind]
    scope: Open[StateScope] = Field(
        description="`keyed` rows belong to a key. `operator`, `union`, `broadcast` and `partial` rows have none: "
        "their key is `_group`, the key group that they lie in, which look-ups of broadcast lists and maps leave out. "
        "Of `partial` state it is the number of the instance; look-ups of values and maps without it are of all."
    )
    key: list[StateColumn]
    sub_key: list[StateColumn] = Field(
        description="What tells the rows of one key apart: a window's time, a map's own key, a list's `_index`."
    )
    value: list[ValueColumn]
    queryable: bool
    rows: int | None
    branch: str | None
    epoch: int | None
    note: str | None = Field(
        default=None,
        description="What the rows are where they do not stand for themselves: panes of windows that overlap.",
    )


class InstanceValue(Answer):
    """What one instance of partial state has."""

    instance: int
    value: dict[str, Any]


class StateValue(Answer):
    """``value`` for a whole key; ``entries`` (sub-key and value columns together) for the operator's key of list and
    map state, and of windows, in the order of time. Dates, times, decimals, binaries and special floating-point values
    are strings."""

    table: str
    key: dict[str, Any]
    value: dict[str, Any] | None = None
    entries: list[dict[str, Any]] | None = None
    instances: list[InstanceValue] | None = Field(
        default=None,
        description="Of partial state, where the key names no instance: what each has. `value` is then their values "
        "merged by `reconcile`, or null where only the program can merge them.",
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
    """``values``: one for each key, in the same order, null where there is no row; all of one epoch."""

    table: str
    branch: str
    epoch: int
    isolation: Open[Isolation]
    since: Since = None
    values: list[dict[str, Any] | None]


class ScannedRow(Answer):
    """``key``: all key columns, also a map's or list's own."""

    key: dict[str, Any]
    value: dict[str, Any]


class Scan(Answer):
    """Rows in key order. All pages are of the epoch of the first."""

    table: str
    branch: str
    epoch: int
    isolation: Open[Isolation]
    items: list[ScannedRow]
    next_cursor: str | None
    since: Since = None
    note: str | None = Field(
        default=None,
        description="What the rows are where they do not stand for themselves: panes of windows that overlap.",
    )
