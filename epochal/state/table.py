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
    """Kind of state that the author declares. All kinds are stored alike: full key -> value columns."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    AGGREGATE = "aggregate"


class StateScope(StrEnum):
    """Owner of the rows: the subtasks that read a row, the subtask that writes it, and its key group (thesis 4.2).

    Scopes may be added. Code calls the methods of the scope and of its table; it never assumes that a scope which is
    not one member must be another.
    """

    KEYED = "keyed"
    """Rows of one key, read and written by the owner of the key's key group."""
    OPERATOR = "operator"
    """Rows of one subtask, which spreads them over its key groups. A rescale distributes them round-robin."""
    UNION = "union"
    """Like operator scope, but every subtask reads the rows of all subtasks."""
    BROADCAST = "broadcast"
    """Rows of all subtasks, which write identical rows: subtask 0 writes them for all, into key group 0."""
    PARTIAL = "partial"
    """One instance of the whole state for each subtask: instance i is key group i. With fewer subtasks than instances,
    subtask s merges the instances s, s + parallelism, .. into one (SDG 3.2)."""

    @property
    def has_key(self) -> bool:
        """True if the operator's key addresses the rows; otherwise their key group does, in column ``_group``."""
        return self is StateScope.KEYED

    @property
    def read_like(self) -> StateScope:
        """The scope whose key groups are read in the same way as those of this scope, at every parallelism."""
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

    ``default``: the value in rows that are older than the column, in the form of :mod:`epochal.state.json_form`.
    ``since``: for an aggregate that was added to existing keys, the first epoch whose rows it counts.
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
"""Key column of a state table without a key: the row's key group. With the sub-key, it forms the row's address."""


TOUCHED = Column(name="_touched", type="timestamp")
"""Value column of a state with a time to live: the time of the row's last refresh, by which the row expires."""
DELETED_AT = Column(name="_deleted_at", type="timestamp")
"""Value column of a state whose deleted keys expire: the last refresh of a deleted key, null for other keys."""


class Quotient(BaseModel):
    """A column that look-ups compute from two stored columns: an average is stored as sum and count.

    ``dividend / divisor`` as ``type``, double or a decimal; null where the divisor is 0 or one of them is null.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    dividend: str
    divisor: str
    type: str = "double"

    @model_serializer(mode="wrap")
    def _without_usual_type(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit ``double``, so that the manifests of such columns stay byte-identical."""
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
    """A column that look-ups compute: ``function`` of :mod:`epochal.state.shown` over the stored ``columns``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    type: str
    function: str
    columns: tuple[str, ...]
    options: dict[str, Any] = {}
    kept: tuple[str, ...] = ()
    """All columns that are stored for it, including those that only the merge needs."""

    def over(self, rows: pa.Table) -> Any:
        """The values in many rows of value columns, as an Arrow array."""
        return FUNCTIONS[self.function]([rows[name] for name in self.columns], self.type, self.options)


ANY: Final = "any"
"""Merge function for columns that are equal in all instances: takes the value of any instance."""
SUM_OR_NULL: Final = "sum_or_null"
"""Merge function for columns whose instances hold parts of a sum. Null, also in one instance, means overflow."""
ZERO_IS_NONE: Final = "zero_is_none"
"""Option of :data:`SUM_OR_NULL`: a row whose parts add up to zero does not exist."""


class MergedColumns(BaseModel):
    """Value columns that merge together, by their names within an aggregate: ``function`` with ``options`` of
    :mod:`epochal.aggregates.kept_merges`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    function: str
    columns: dict[str, str]
    options: dict[str, Any] = {}


BY_PROGRAM: Final = "program"
"""Value of ``reconcile``: the author's code merges the instances."""


CACHED_SCOPES: Final = (StateScope.KEYED, StateScope.OPERATOR)
"""Scopes of state that need not be durable: a single subtask reads and writes each row."""


class StateTable(BaseModel):
    """The declaration of a state table, as every manifest stores it.

    The full key is ``key`` (the operator's key columns; :data:`GROUP` in a scope without a key) followed by ``sub_key``
    (a map's own key; a list's ``_index`` bigint; empty otherwise). ``id`` is the name for users: ``delays`` for an
    aggregate, ``streaks.current`` for a declared state of a process operator.

    A *time-ordered* table (windows, rows that wait for a partner, timers) has a ``time``, never null, first in its full
    key. Each key group is therefore sorted by time and serves as the index of due rows. The key group depends on
    ``key`` alone. Users name a row by its ``address``, in which the time follows the key.
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
    """Columns that look-ups compute from the value columns; not stored."""
    expires: Expiry | None = None
    windows: dict[str, Any] | None = None
    """The windows that its rows belong to, as JSON. The layout of open windows depends on them."""
    merges: tuple[MergedColumns, ...] | None = None
    """For windows that are stored as panes: how look-ups merge panes into windows. ``None``: only the program can."""
    joined: dict[str, str] | None = None
    """The condition of a stream join, as JSON. Waiting rows and emitted rows depend on it."""
    ranked: dict[str, Any] | None = None
    """The rows retained for each key, a fixed number of the first rows in an order, as JSON. Other rows are dropped."""
    changes_of: str | None = None
    """The operator whose changes the table aggregates. The table has counted all changes that this operator emitted."""
    definition: Definition | None = None
    """The author's definition; ``None`` in tables of versions that stored no definitions."""
    reconcile: tuple[MergedColumns, ...] | Literal["program"] | None = None
    """For partial state: how the rows of two instances for one key are merged. ``None``: they are never merged."""
    queryable: bool = True
    durable: bool = True
    """True if snapshots contain its rows. Otherwise only the cache of the machine that ran the subtask contains them;
    losing that cache loses the subtask's rows."""

    @model_serializer(mode="wrap")
    def _without_what_is_usual(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit default values, so that the manifests of keyed tables without time stay byte-identical."""
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
        """The declaration without its definition, which tasks do not need."""
        return self if self.definition is None else self.model_copy(update={"definition": None})

    @property
    def unreadable(self) -> str | None:
        """The reason why only the program can read the table, and the remedy; ``None`` if others can read it."""
        if not self.durable:
            return "is not durable, and in no snapshot; declare it without durable=False to read it"
        return None if self.queryable else "is not queryable; declare it with queryable=True"

    def __copy__(self) -> Self:
        """Drop cached properties: ``model_copy(update=..)`` changes the copy, so cached values may be wrong there."""
        copied = super().__copy__()
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied

    @cached_property
    def full_key(self) -> tuple[Column, ...]:
        """Key columns in the sort order of a key group's rows."""
        return (*self._time, *self.key, *self.sub_key)

    @cached_property
    def address(self) -> tuple[Column, ...]:
        """The columns of the full key in the order in which users name them."""
        return self.key + self.entry_key

    @cached_property
    def entry_key(self) -> tuple[Column, ...]:
        """Columns that distinguish the rows of one operator key: time, map key or list position. Empty for one row."""
        return (*self._time, *self.sub_key)

    @property
    def _time(self) -> tuple[Column, ...]:
        return () if self.time is None else (self.time,)

    def horizon(self, clock: StateClock | None) -> int | None:
        """See :meth:`Expiry.horizon`; also ``None`` where rows never expire."""
        return None if self.expires is None else self.expires.horizon(clock)

    @cached_property
    def implied(self) -> dict[str, Any]:
        """Leading key columns that have the same value in every row; users omit them."""
        return {GROUP.name: 0} if self.scope is StateScope.BROADCAST and self.sub_key else {}

    @cached_property
    def hidden(self) -> frozenset[str]:
        """Value columns that only serve expiry: neither look-ups nor comparisons show them."""
        column = None if self.expires is None else self.expires.column
        return frozenset({TOUCHED.name, DELETED_AT.name} & {column})

    @cached_property
    def visible(self) -> tuple[Column, ...]:
        """The value columns that look-ups show."""
        return tuple(column for column in self.value if column.name not in self.hidden)

    @cached_property
    def partials(self) -> frozenset[str]:
        """Value columns that only serve the computation of ``shown`` columns."""
        return frozenset(name for shown in self.shown for name in shown.kept)

    def author_column(self, name: str) -> str:
        """The author's column that a value column belongs to: ``mean`` for ``mean_sum``, ``r`` for ``r_1``."""
        defined = None if self.definition is None else self.definition.columns.get(name)
        if defined is not None and defined.column is not None:
            return defined.column
        return next((shown.name for shown in self.shown if name in shown.kept), name)

    def since(self, name: str) -> int | None:
        """The first epoch whose rows a value column, or an author's column, counts; ``None``: it counts all rows."""
        kept = (each for each in self.value if name in (each.name, self.author_column(each.name)))
        return max((each.since for each in kept if each.since is not None), default=None)

    @cached_property
    def partial_since(self) -> Mapping[str, int]:
        """Columns in look-ups that do not count all rows, each with its :meth:`since`; usually empty."""
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
        """The columns of the address. Sorted by its bytes, the rows of a key are adjacent."""
        return pa.schema([*self.owner_schema, *self.time_schema, *self.sub_key_schema])

    @cached_property
    def time_schema(self) -> pa.Schema:
        """The time of a time-ordered table, never null; no column otherwise."""
        return pa.schema([column.to_arrow(nullable=False) for column in self._time])

    @cached_property
    def owner_schema(self) -> pa.Schema:
        """The operator's key columns. All of them are nullable: Spark groups nulls together."""
        return pa.schema([column.to_arrow() for column in self.key])

    @cached_property
    def sub_key_schema(self) -> pa.Schema:
        """The columns of a map's own key or of a list's position; never null."""
        return pa.schema([column.to_arrow(nullable=False) for column in self.sub_key])

    def key_groups(self, keys: Columns, max_parallelism: int) -> Groups:
        """The key group of each row of ``keys``, which contains at least the columns of ``key``."""
        if self.scope.has_key:
            return key_groups(keys, self.owner_schema, max_parallelism)
        groups: Groups = column(keys, self.owner_schema.field(GROUP.name)).fill_null(-1).to_numpy()
        return groups

    @cached_property
    def value_schema(self) -> pa.Schema:
        return pa.schema([column.to_arrow() for column in self.value])

    def shown_of(self, row: Mapping[str, Any]) -> Iterator[tuple[Quotient | Shown, Any]]:
        """The ``shown`` columns of one row of value columns, as Python values."""
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
