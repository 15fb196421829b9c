"""State declarations, and the accesses by which authors' code reads and writes state.

A declaration is a class attribute of a :class:`~epochal.declarations.keyed.KeyedProcess`. On the class, the attribute
is the declaration; on the instance that the engine runs, it is an *access* to the state of the current key. The engine
implements the three accesses and binds them with :func:`bind`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from epochal.declarations.ddl import parse_columns
from epochal.declarations.names import check_name, listed
from epochal.declarations.reconcile import Reconciling, reconciling_of
from epochal.declarations.time_to_live import TtlOn, time_to_live
from epochal.errors import PipelineError, SchemaError
from epochal.state.expiry import Refresh
from epochal.state.table import (
    BY_PROGRAM,
    CACHED_SCOPES,
    GROUP,
    TOUCHED,
    Column,
    MergedColumns,
    StateKind,
    StateScope,
    StateTable,
)
from epochal.state.types import is_key_type, key_fix

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LIST_INDEX = Column(name="_index", type="bigint")
"""The sub-key of list state: the position of the element."""

_BOUND = "_epochal_state"


class ValueAccess(ABC):
    """The value of the current key.

    If the state declares one column, the value is a plain Python value; otherwise it is a named tuple of the columns.
    """

    @abstractmethod
    def get(self) -> Any:
        """Return the value, or ``None`` if there is none."""

    @abstractmethod
    def set(self, *values: Any, **columns: Any) -> None:
        """Write the value: ``set(3)``, ``set(3, since)``, ``set(streak=3, since=..)``,
        ``set(old._replace(streak=3))``."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the value. A missing value is ignored."""


class ListAccess(ABC):
    """The list of the current key. An element has the form of a value of :class:`ValueAccess`."""

    @abstractmethod
    def get(self) -> list[Any]:
        """Return all elements, oldest first. Changes to the returned list do not change the state."""

    @abstractmethod
    def append(self, *values: Any, **columns: Any) -> None:
        """Append one element. Arguments are those of :meth:`ValueAccess.set`."""

    @abstractmethod
    def extend(self, elements: Iterable[Any]) -> None:
        """Append elements: plain values, or tuples if the state declares several columns."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all elements."""

    @abstractmethod
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def own(self) -> list[Any]:
        """Return the elements that this subtask wrote; for union state, :meth:`get` returns those of all subtasks."""
        return self.get()


class MapAccess(ABC):
    """The map of the current key. Map keys and values have the form of a value of :class:`ValueAccess`."""

    @abstractmethod
    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of ``key``, or ``default``."""

    @abstractmethod
    def put(self, key: Any, value: Any) -> None:
        """Write ``value`` for ``key``."""

    @abstractmethod
    def remove(self, key: Any) -> None:
        """Remove ``key``. A missing key is ignored."""

    @abstractmethod
    def contains(self, key: Any) -> bool:
        """Return whether ``key`` has a value."""

    @abstractmethod
    def items(self) -> list[tuple[Any, Any]]:
        """Return all (key, value) pairs, in key order."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all entries."""

    def keys(self) -> list[Any]:
        """Return all keys, in order."""
        return [key for key, _ in self.items()]

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def __getitem__(self, key: Any) -> Any:
        if not self.contains(key):
            raise KeyError(key)
        return self.get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)


StateAccess = ValueAccess | ListAccess | MapAccess


class StateDeclaration:
    """Common parts of the three declarations. The name of the state is the name of the attribute.

    ``queryable``: whether the state can be looked up. ``scope`` (:class:`~epochal.state.table.StateScope`): ``keyed``
    state belongs to the current key; ``operator`` to the subtask; ``union`` to the subtask, and all subtasks read it;
    ``broadcast`` is the same on all subtasks; ``partial`` has one instance per subtask.

    ``reconcile``: how two instances of partial state are merged when the parallelism is reduced
    (:mod:`epochal.declarations.reconcile`). Without it the parallelism cannot be reduced.

    ``ttl``: the time (``"7 days"``) after the last write after which a value, an element of a list or an entry of a map
    is removed. ``ttl_on``: measured in epoch time, or in event time by the watermark. ``refresh="read_and_write"``:
    reads renew the time to live too.

    ``durable=False``: the state is not part of snapshots; it is only in the cache of the machine that runs the subtask.
    If the cache is missing, the state is empty and the program continues.
    """

    kind: ClassVar[StateKind]
    scopes: ClassVar[tuple[StateScope, ...]] = (StateScope.KEYED, StateScope.BROADCAST, StateScope.PARTIAL)

    def __init__(
        self,
        schema: str | StructType,
        *,
        queryable: bool = True,
        scope: str = "keyed",
        ttl: str | None = None,
        ttl_on: TtlOn = "processing_time",
        refresh: Refresh = "write",
        reconcile: Reconciling | None = None,
        durable: bool = True,
    ) -> None:
        if scope not in self.scopes:
            raise PipelineError(
                f"{type(self).__name__} cannot have scope {scope!r}; it must be one of {listed(map(str, self.scopes))}."
            )
        self.schema = schema
        self.queryable = queryable
        self.durable = durable
        self.scope = StateScope(scope)
        self.expires = time_to_live(f"{type(self).__name__}()", ttl, ttl_on, refresh)
        if self.expires is not None and not self.scope.has_key:
            raise PipelineError(
                f"{type(self).__name__} of scope {scope!r} cannot have a ttl: only keyed state can expire."
            )
        if reconcile is not None and self.scope is not StateScope.PARTIAL:
            raise PipelineError(
                f"{type(self).__name__} of scope {scope!r} cannot have reconcile: only partial state has instances."
            )
        if not durable and self.scope not in CACHED_SCOPES:
            raise PipelineError(
                f"{type(self).__name__} of scope {scope!r} must be durable: durable=False is only available "
                f"for scopes that a single subtask reads and writes ({listed(map(str, CACHED_SCOPES))})."
            )
        self.reconcile = reconcile
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        check_name(f"a state of {owner.__name__}", name)
        self.name = name

    def value_columns(self) -> tuple[Column, ...]:
        """The value columns. Raises ``SchemaError`` with the fix."""
        return parse_columns(f"State {self.name!r}", self.schema)

    def sub_key_columns(self) -> tuple[Column, ...]:
        """The columns of the full key after the key of the operator."""
        return ()

    def reconciling(self) -> tuple[MergedColumns, ...] | Literal["program"] | None:
        """The rule for merging two instances, in the form of the state table. Raises ``PipelineError`` with the fix."""
        return reconciling_of(f"State {self.name!r}", self.value_columns(), self.reconcile)

    def table(self, operator: str, key: tuple[Column, ...]) -> StateTable:
        """The state table of this declaration in ``operator``, which has the key columns ``key``."""
        return StateTable(
            id=f"{operator}.{self.name}",
            operator=operator,
            kind=self.kind,
            scope=self.scope,
            key=key if self.scope.has_key else (GROUP,),
            sub_key=self.sub_key_columns(),
            value=self.value_columns() if self.expires is None else (*self.value_columns(), TOUCHED),
            expires=self.expires,
            reconcile=self.reconciling(),
            queryable=self.queryable and self.durable,
            durable=self.durable,
        )


class ValueState(StateDeclaration):
    """One value per key: ``current = ValueState("streak int, since timestamp")``."""

    kind = StateKind.VALUE

    @overload
    def __get__(self, instance: None, owner: type) -> ValueState: ...
    @overload
    def __get__(self, instance: object, owner: type) -> ValueAccess: ...
    def __get__(self, instance: object | None, owner: type) -> ValueState | ValueAccess:
        return self if instance is None else _bound(instance, self.name)


class ListState(StateDeclaration):
    """A list per key: ``recent = ListState("delay int")``. Each element is a row of the state table, with ``_index``.

    With ``scope="operator"`` or ``"union"``: a list per subtask; its elements have the key (``_group``, ``_index``).
    """

    kind = StateKind.LIST
    scopes = (
        StateScope.KEYED,
        StateScope.OPERATOR,
        StateScope.UNION,
        StateScope.BROADCAST,
        StateScope.PARTIAL,
    )

    def reconciling(self) -> Literal["program"] | None:
        if self.reconcile is not None and not callable(self.reconcile):
            raise PipelineError(
                f"State {self.name!r}: two lists are merged by a function of both, reconcile=lambda a, b: .., not by "
                f"{self.reconcile!r}."
            )
        return None if self.reconcile is None else BY_PROGRAM

    def sub_key_columns(self) -> tuple[Column, ...]:
        return (LIST_INDEX,)

    @overload
    def __get__(self, instance: None, owner: type) -> ListState: ...
    @overload
    def __get__(self, instance: object, owner: type) -> ListAccess: ...
    def __get__(self, instance: object | None, owner: type) -> ListState | ListAccess:
        return self if instance is None else _bound(instance, self.name)


class MapState(StateDeclaration):
    """A map per key: ``carriers = MapState(key="carrier string", value="late int")``. Each entry is a row."""

    kind = StateKind.MAP

    def __init__(
        self,
        key: str | StructType,
        value: str | StructType,
        *,
        queryable: bool = True,
        scope: str = "keyed",
        ttl: str | None = None,
        ttl_on: TtlOn = "processing_time",
        refresh: Refresh = "write",
        reconcile: Reconciling | None = None,
        durable: bool = True,
    ) -> None:
        super().__init__(
            value,
            queryable=queryable,
            scope=scope,
            ttl=ttl,
            ttl_on=ttl_on,
            refresh=refresh,
            reconcile=reconcile,
            durable=durable,
        )
        self.key = key

    def sub_key_columns(self) -> tuple[Column, ...]:
        where = f"The key of state {self.name!r}"
        columns = parse_columns(where, self.key)
        for column in columns:
            if not is_key_type(column.type):
                raise SchemaError(
                    f"{where}, column {column.name!r}: {column.type} cannot be a key. {key_fix(column.type)}"
                )
        return columns

    @overload
    def __get__(self, instance: None, owner: type) -> MapState: ...
    @overload
    def __get__(self, instance: object, owner: type) -> MapAccess: ...
    def __get__(self, instance: object | None, owner: type) -> MapState | MapAccess:
        return self if instance is None else _bound(instance, self.name)


def declared_states(owner: type) -> dict[str, StateDeclaration]:
    """All states that a class and its bases declare, by name, in the order of declaration."""
    states: dict[str, StateDeclaration] = {}
    for base in reversed(owner.__mro__):
        for name, attribute in vars(base).items():
            if isinstance(attribute, StateDeclaration):
                states[name] = attribute
            else:
                states.pop(name, None)
    return states


def bind(instance: object, accesses: Mapping[str, StateAccess]) -> None:
    """Bind, for the engine, the states of ``instance`` to ``accesses``."""
    instance.__dict__[_BOUND] = accesses


def _bound(instance: object, name: str) -> Any:
    try:
        return instance.__dict__[_BOUND][name]
    except KeyError:
        raise PipelineError(
            f"State {name!r} of {type(instance).__name__} is only available while a key is processed: "
            "use it only in process()."
        ) from None
