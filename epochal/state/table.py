"""A state table: the rows of one declared state of one operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Literal, Self

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator

from epochal.state.column_bytes import Columns, column
from epochal.state.definition import Definition
from epochal.state.expiry import TIME_TYPES, Expiry, StateClock
from epochal.state.keygroups import Groups, groups_of, key_groups
from epochal.state.shown import FUNCTIONS, quotient, quotients
from epochal.state.types import arrow_type


class StateKind(StrEnum):
    """How the author sees the state. All kinds are stored alike: full key -> value columns."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    AGGREGATE = "aggregate"


class StateScope(StrEnum):
    """Whose a row is: which subtasks read it, which one writes it, and what follows for its key group (thesis 4.2).

    More may come: code asks the methods of the scope and of its table, and never whether it is the only other one.
    """

    KEYED = "keyed"
    """Of one key: read and written by the owner of the key's key group."""
    OPERATOR = "operator"
    """Of one subtask, which spreads its rows over its key groups: rescaled, they go round-robin to the others."""
    UNION = "union"
    """As operator, but every subtask reads the rows of all."""
    BROADCAST = "broadcast"
    """Of all subtasks, which write the same: subtask 0 does so for all of them, into key group 0."""
    PARTIAL = "partial"
    """One instance of the whole state for each subtask: instance i is key group i. Where there are fewer subtasks than
    instances, subtask s makes one of the instances s, s + parallelism, .. (SDG 3.2)."""

    @property
    def has_key(self) -> bool:
        """Whether the operator's key is the rows' address; otherwise it is their key group, in column ``_group``."""
        return self is StateScope.KEYED

    @property
    def read_like(self) -> StateScope:
        """The scope whose key groups are read as those of this one, at every parallelism."""
        return StateScope.KEYED if self in (StateScope.OPERATOR, StateScope.PARTIAL) else self

    def groups_read(self, subtask: int, parallelism: int, max_parallelism: int) -> range:
        """The key groups whose rows a subtask reads."""
        match self:
            case StateScope.KEYED | StateScope.OPERATOR | StateScope.PARTIAL:
                return groups_of(subtask, parallelism, max_parallelism)
            case StateScope.UNION:
                return range(max_parallelism)
            case StateScope.BROADCAST:
                return range(1)


class Column(BaseModel):
    """A column with its Spark type as Spark spells it: ``bigint``, ``decimal(10,2)``, ``timestamp``.

    ``default``, in the form of :mod:`epochal.state.json_form`, is what rows from before the column was there have.
    ``since``, of an aggregate that was added to existing keys: it counts rows from this epoch on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    type: str
    default: Any = None
    since: int | None = None

    @model_serializer(mode="wrap")
    def _without_absent_fields(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        return {name: value for name, value in fields.items() if name in ("name", "type") or value is not None}

    def to_arrow(self, nullable: bool = True) -> pa.Field:
        return pa.field(self.name, arrow_type(self.type), nullable=nullable)


GROUP = Column(name="_group", type="int")
"""The key of a state table without a key of its own: the row's key group, which with the sub-key is its address."""


TOUCHED = Column(name="_touched", type="timestamp")
"""The value column of a state with a time to live: when the row was last refreshed, which it expires by."""
DELETED_AT = Column(name="_deleted_at", type="timestamp")
"""The value column of a state whose deleted keys expire: the last refresh of a deleted key, null for other keys."""


class Quotient(BaseModel):
    """A column that look-ups show beside the kept ones: an average is kept as sum and count, people want the average.

    ``dividend / divisor`` as ``type``, double or a decimal; null where the divisor is 0 or one of them is null.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    dividend: str
    divisor: str
    type: str = "double"

    @model_serializer(mode="wrap")
    def _without_usual_type(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Manifests that have no other type stay as they were."""
        fields: dict[str, Any] = serialize(self)
        return {name: value for name, value in fields.items() if name != "type" or value != "double"}

    @property
    def kept(self) -> tuple[str, ...]:
        return (self.dividend, self.divisor)

    def of(self, row: Mapping[str, Any]) -> Any:
        """The value in one row of value columns, as a Python value."""
        return quotient(row[self.dividend], row[self.divisor], self.type)

    def over(self, rows: pa.Table) -> Any:
        """The values in many rows of value columns, as an Arrow array."""
        return quotients(rows[self.dividend], rows[self.divisor], self.type)


class Shown(BaseModel):
    """A column that look-ups show: ``function`` of :mod:`epochal.state.shown` over kept ``columns``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    type: str
    function: str
    columns: tuple[str, ...]
    options: dict[str, Any] = {}
    kept: tuple[str, ...] = ()
    """All columns that are kept for it; some may only serve the merge."""

    def over(self, rows: pa.Table) -> Any:
        """The values in many rows of value columns, as an Arrow array."""
        return FUNCTIONS[self.function]([rows[name] for name in self.columns], self.type, self.options)


ANY: Final = "any"
"""The function of columns that are the same in all instances: one of them will do."""
SUM_OR_NULL: Final = "sum_or_null"
"""The function of columns of which instances hold parts of a sum; null, in one of them too: it has left its type."""
ZERO_IS_NONE: Final = "zero_is_none"
"""The option of it that says: a row whose parts add up to zero is gone."""


class MergedColumns(BaseModel):
    """Value columns that merge as one, by their names within an aggregate: ``function`` with ``options`` of
    :mod:`epochal.aggregates.kept_merges`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    function: str
    columns: dict[str, str]
    options: dict[str, Any] = {}


BY_PROGRAM: Final = "program"
"""How instances become one: by the author's code."""


CACHED_SCOPES: Final = (StateScope.KEYED, StateScope.OPERATOR)
"""Of what need not be durable: rows that one subtask alone reads and writes."""


class StateTable(BaseModel):
    """The declaration of a state table, as it stands in every manifest.

    The full key is ``key`` (the operator's key columns; :data:`GROUP` in a scope without a key) and then ``sub_key`` (a
    map's own key; a list's ``_index`` bigint; empty otherwise). ``id`` is the name people use: ``delays`` for an
    aggregate, ``streaks.current`` for a declared state of a process operator.

    A *time-ordered* table (windows, rows that wait for a partner, timers) has a ``time``, never null, first in its full
    key: each key group lies in the order of time, and is its own index of what is due. The key group is by ``key``
    alone. People name a row by its ``address``, in which the time comes after the key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))

    id: str
    operator: str
    kind: StateKind
    scope: StateScope = StateScope.KEYED
    key: tuple[Column, ...]
    sub_key: tuple[Column, ...] = ()
    time: Column | None = None
    value: tuple[Column, ...]
    shown: tuple[Quotient | Shown, ...] = ()
    """What look-ups compute from the value columns; not stored."""
    expires: Expiry | None = None
    windows: dict[str, Any] | None = None
    """Of which windows its rows are, as JSON: those that are open lie by them."""
    merges: tuple[MergedColumns, ...] | None = None
    """Of windows that are kept as panes: how look-ups make windows of them. ``None``: only the program can."""
    joined: dict[str, str] | None = None
    """How rows of a stream that is joined find partners, as JSON: what waits, and what has come out, is by that."""
    ranked: dict[str, Any] | None = None
    """Which rows of a key are kept, the first so many in an order, as JSON: all others are gone."""
    changes_of: str | None = None
    """The operator whose changes it aggregates: it has counted all that this one has given."""
    definition: Definition | None = None
    """What its author wrote; ``None`` in tables of versions that stored no definitions."""
    reconcile: tuple[MergedColumns, ...] | Literal["program"] | None = None
    """Of partial state: how the rows that two instances have of one key become one. ``None``: they never do."""
    queryable: bool = True
    durable: bool = True
    """Whether its rows are in snapshots. Otherwise they are in the cache of the machine that a subtask ran on, alone:
    where that is gone the subtask's rows are, too."""

    @model_serializer(mode="wrap")
    def _without_what_is_usual(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Manifests of keyed tables without time stay as they were."""
        fields: dict[str, Any] = serialize(self)
        absent = dict.fromkeys(
            ("time", "expires", "windows", "joined", "ranked", "changes_of", "definition", "merges", "reconcile")
        )
        usual = absent | {"scope": StateScope.KEYED, "durable": True}
        return {name: value for name, value in fields.items() if name not in usual or value != usual[name]}

    @model_validator(mode="after")
    def _times_are_times(self) -> StateTable:
        if self.time is not None and (not self.scope.has_key or self.time.type not in TIME_TYPES):
            raise ValueError(f"state {self.id!r}: a time-ordered table is keyed, and its time one of {TIME_TYPES}")
        if self.expires is not None:
            expiring = [column for column in (self.time, *self.value) if column and column.name == self.expires.column]
            if not expiring or expiring[0].type not in TIME_TYPES:
                raise ValueError(f"state {self.id!r} expires by {self.expires.column!r}, which is no time of its rows")
        return self

    @model_validator(mode="after")
    def _in_a_cache_of_its_own(self) -> StateTable:
        if not self.durable and (self.queryable or self.scope not in CACHED_SCOPES):
            raise ValueError(f"state {self.id!r} is not durable: it is queryable nowhere, and keyed or of a subtask")
        return self

    def without_definition(self) -> StateTable:
        """The declaration as tasks need it."""
        return self if self.definition is None else self.model_copy(update={"definition": None})

    @property
    def unreadable(self) -> str | None:
        """Why nobody but the program can read it, and what to do; ``None`` where others can."""
        if not self.durable:
            return "is not durable, and in no snapshot; declare it without durable=False to read it"
        return None if self.queryable else "is not queryable; declare it with queryable=True"

    def __copy__(self) -> Self:
        """``model_copy(update=..)`` is a copy that is changed: what was computed of this one may not hold for it."""
        copied = super().__copy__()
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied

    @cached_property
    def full_key(self) -> tuple[Column, ...]:
        """In the order in which a key group's rows lie."""
        return (*self._time, *self.key, *self.sub_key)

    @cached_property
    def address(self) -> tuple[Column, ...]:
        """The columns of the full key in the order in which people name them."""
        return self.key + self.entry_key

    @cached_property
    def entry_key(self) -> tuple[Column, ...]:
        """What tells the rows of one operator's key apart: time, map key or list position; empty where it has one."""
        return (*self._time, *self.sub_key)

    @property
    def _time(self) -> tuple[Column, ...]:
        return () if self.time is None else (self.time,)

    def horizon(self, clock: StateClock | None) -> int | None:
        """As :meth:`Expiry.horizon`; ``None``, too, where rows never expire."""
        return None if self.expires is None else self.expires.horizon(clock)

    @cached_property
    def implied(self) -> dict[str, Any]:
        """Leading key columns that are the same in every row, so that people leave them out."""
        return {GROUP.name: 0} if self.scope is StateScope.BROADCAST and self.sub_key else {}

    @cached_property
    def hidden(self) -> frozenset[str]:
        """Value columns that are kept for the rows' expiry alone: neither look-ups nor comparisons show them."""
        column = None if self.expires is None else self.expires.column
        return frozenset({TOUCHED.name, DELETED_AT.name} & {column})

    @cached_property
    def visible(self) -> tuple[Column, ...]:
        """The value columns that look-ups show."""
        return tuple(column for column in self.value if column.name not in self.hidden)

    @cached_property
    def partials(self) -> frozenset[str]:
        """Value columns that are kept for the sake of what is ``shown``; people look at that."""
        return frozenset(name for shown in self.shown for name in shown.kept)

    def author_column(self, name: str) -> str:
        """The author's column that a value column is kept for: ``mean`` of ``mean_sum``, ``r`` of ``r_1``."""
        defined = None if self.definition is None else self.definition.columns.get(name)
        if defined is not None and defined.column is not None:
            return defined.column
        return next((shown.name for shown in self.shown if name in shown.kept), name)

    def since(self, name: str) -> int | None:
        """The epoch from which a value column, or an author's column that values are kept for, counts rows; ``None``:
        it counts all."""
        kept = (each for each in self.value if name in (each.name, self.author_column(each.name)))
        return max((each.since for each in kept if each.since is not None), default=None)

    @cached_property
    def partial_since(self) -> Mapping[str, int]:
        """The columns that look-ups show and that do not count all rows, each with its :meth:`since`; usually none."""
        if all(column.since is None for column in self.value):
            return {}
        counted = {column.name: self.since(column.name) for column in (*self.visible, *self.shown)}
        return {name: since for name, since in counted.items() if since is not None}

    @cached_property
    def key_schema(self) -> pa.Schema:
        """The columns of the full key."""
        return pa.schema([*self.time_schema, *self.owner_schema, *self.sub_key_schema])

    @cached_property
    def address_schema(self) -> pa.Schema:
        """The columns of the address. In the order of its bytes, the rows of a key lie together."""
        return pa.schema([*self.owner_schema, *self.time_schema, *self.sub_key_schema])

    @cached_property
    def time_schema(self) -> pa.Schema:
        """The time of a time-ordered table, never null; no column otherwise."""
        return pa.schema([column.to_arrow(nullable=False) for column in self._time])

    @cached_property
    def owner_schema(self) -> pa.Schema:
        """The operator's key columns. Any of them may be null, as Spark groups nulls together."""
        return pa.schema([column.to_arrow() for column in self.key])

    @cached_property
    def sub_key_schema(self) -> pa.Schema:
        """The columns of a map's own key, or of a list's position; never null."""
        return pa.schema([column.to_arrow(nullable=False) for column in self.sub_key])

    def key_groups(self, keys: Columns, max_parallelism: int) -> Groups:
        """The key group of each row of ``keys``, which has at least the columns of ``key``."""
        if self.scope.has_key:
            return key_groups(keys, self.owner_schema, max_parallelism)
        groups: Groups = column(keys, self.owner_schema.field(GROUP.name)).fill_null(-1).to_numpy()
        return groups

    @cached_property
    def value_schema(self) -> pa.Schema:
        return pa.schema([column.to_arrow() for column in self.value])

    def shown_of(self, row: Mapping[str, Any]) -> Iterator[tuple[Quotient | Shown, Any]]:
        """What is shown beside one row of value columns, as Python values."""
        for shown in self.shown:
            if isinstance(shown, Quotient):
                yield shown, shown.of(row)
                continue
            kept = {name: pa.array([row[name]], self.value_schema.field(name).type) for name in shown.columns}
            yield shown, shown.over(pa.table(kept)).to_pylist()[0]

    @cached_property
    def delta_schema(self) -> pa.Schema:
        """``_kg`` int32, ``_op`` string (``put`` or ``delete``), the full key, the value columns (null on delete)."""
        control = [pa.field("_kg", pa.int32(), nullable=False), pa.field("_op", pa.string(), nullable=False)]
        return pa.schema([*control, *self.key_schema, *self.value_schema])
