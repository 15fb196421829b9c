"""Partial state after the number of subtasks has decreased: a subtask reconciles its instances into one (SDG 3.2).

The first epoch that finds several instances reconciles them before the operator's work runs. The work reads and writes
one instance. The transaction adds the deletion of the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.aggregates.kept_merges import are_rows, merged
from epochal.contracts.handle import Handle
from epochal.contracts.state import Found, KeyGroups, StateRows, StateTransaction, StateView
from epochal.declarations.reconcile import Reconcile
from epochal.errors import AuthorError
from epochal.state.column_bytes import as_list
from epochal.state.key_codec import KeyCodec
from epochal.state.table import BY_PROGRAM, StateKind, StateScope, StateTable
from epochal.tasks.keys import named_rows
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.state_values import Fields, value_column
from epochal.tasks.values import column_of, python_values


def reconciling(
    transaction: StateTransaction,
    tables: Sequence[StateTable],
    subtask: int,
    parallelism: int,
    max_parallelism: int,
    functions: Mapping[str, Reconcile],
) -> StateTransaction:
    """``transaction`` with one instance of each partial state table: the instance of the subtask's own number.

    ``functions``: by table id, the author's functions that reconcile. Raises ``AuthorError`` for their errors, and
    where a built-in merge exceeds its type.
    """
    instances = {}
    for table in tables:
        if table.scope is StateScope.PARTIAL:
            view = transaction.view(table.id)
            groups = np.fromiter(table.scope.groups_read(subtask, parallelism, max_parallelism), np.int32)
            if _any_rows(view, groups[1:]):
                instances[table.id] = _one_of(table, view, groups, functions.get(table.id))
    return _Reconciling(transaction, instances) if instances else transaction


def _any_rows(view: StateView, groups: KeyGroups) -> bool:
    open_bound = pa.nulls(len(groups), pa.binary())
    return bool(len(groups)) and bool(len(view.ranges(groups, open_bound, open_bound, 1).owner))


class _Reconciling(StateTransaction):
    def __init__(self, transaction: StateTransaction, instances: Mapping[str, _Instance]) -> None:
        self._transaction = transaction
        self._instances = instances

    def view(self, table: str) -> StateView:
        instance = self._instances.get(table)
        return self._transaction.view(table) if instance is None else instance.view

    def stage(self, table: str, changes: pa.Table) -> None:
        instance = self._instances.get(table)
        if instance is None:
            self._transaction.stage(table, changes)
        else:
            instance.staged.append(changes)

    def pre_commit(self) -> Handle:
        for id, instance in self._instances.items():
            self._transaction.stage(id, instance.changes())
        return self._transaction.pre_commit()

    def discard(self) -> None:
        self._transaction.discard()


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of one instance: ``keys`` are the encoded sub-keys, in order; ``new[i]``: row i differs from the stored
    one."""

    keys: list[bytes]
    values: pa.Table
    new: npt.NDArray[np.bool_]

    def filter(self, mask: npt.NDArray[np.bool_]) -> _Rows:
        return _Rows(list(compress(self.keys, mask)), self.values.filter(pa.array(mask)), self.new[mask])


@dataclass(frozen=True, eq=False)
class _Instance:
    """The reconciled instance: ``group`` is its key group, ``rows`` are its rows.

    ``stored``: the keys that it had before; ``given_up``: the deletions of the rows of the other instances.
    """

    table: StateTable
    group: int
    rows: _Rows
    stored: frozenset[bytes]
    given_up: pa.Table
    staged: list[pa.Table] = field(default_factory=list)

    @cached_property
    def view(self) -> StateView:
        return _OneInstance([self._prefix + key for key in self.rows.keys], self.rows.values)

    @cached_property
    def _prefix(self) -> bytes:
        return KeyCodec(self.table.owner_schema).encode_one([self.group])

    def changes(self) -> pa.Table:
        """The staged changes, and the changes of the reconciliation to all other keys."""
        table, codec = self.table, KeyCodec(self.table.key_schema)
        written: set[bytes] = set()
        parts = []
        for changes in self.staged:
            keys = as_list(codec.encode_array(changes))
            written.update(keys)
            operations = changes.column("_op").to_pylist()
            there = [op == "put" or key in self.stored for key, op in zip(keys, operations, strict=True)]
            own = changes.select(table.delta_schema.names).cast(table.delta_schema)
            parts.append(own.filter(pa.array(there, pa.bool_())))
        keys = [self._prefix + key for key in self.rows.keys]
        kept = np.array([key not in written for key in keys], bool) & self.rows.new
        puts = _changes(table, self.group, "put", list(compress(keys, kept)), self.rows.values.filter(pa.array(kept)))
        deletes = _changes(table, self.group, "delete", sorted(self.stored - set(keys) - written))
        return pa.concat_tables([*parts, puts, deletes, self.given_up]).combine_chunks()


class _OneInstance(StateView):
    """A view of rows in memory, all of one key group."""

    def __init__(self, keys: list[bytes], values: pa.Table) -> None:
        self._keys = keys
        self._values = values
        self._places = {key: place for place, key in enumerate(keys)}

    def lookup(self, groups: KeyGroups, keys: pa.BinaryArray) -> tuple[Found, pa.Table]:
        places = pa.array([self._places.get(key) for key in as_list(keys)], pa.int64())
        return places.is_valid().to_numpy(zero_copy_only=False), self._values.take(places)

    def ranges(
        self, groups: KeyGroups, low: pa.BinaryArray, high: pa.BinaryArray, limit: int | None = None
    ) -> StateRows:
        found = []
        for start, stop in zip(low.to_pylist(), high.to_pylist(), strict=True):
            first = 0 if start is None else bisect_left(self._keys, start)
            end = len(self._keys) if stop is None else bisect_left(self._keys, stop)
            found.append(range(first, end)[:limit])
        owner = np.repeat(np.arange(len(found)), [len(each) for each in found])
        places = [place for each in found for place in each]
        keys = pa.array([self._keys[place] for place in places], pa.binary())
        return StateRows(owner, keys, self._values.take(pa.array(places, pa.int64())))


def _one_of(table: StateTable, view: StateView, groups: KeyGroups, function: Reconcile | None) -> _Instance:
    open_bound = pa.nulls(len(groups), pa.binary())
    found = view.ranges(groups, open_bound, open_bound)
    keys, group = as_list(found.keys), int(groups[0])
    length = len(KeyCodec(table.owner_schema).encode_one([group]))
    rows: _Rows | None = None
    own: list[bytes] = []
    for instance, first, end in _instances(found.owner):
        values = found.values.slice(first, end - first)
        other = _Rows([key[length:] for key in keys[first:end]], values, np.full(end - first, instance > 0))
        if instance == 0:
            own = keys[:end]
        if rows is None:
            rows = other
            continue
        where = partial("Operator {!r}, state {!r}, reconciling instances {} and {}".format, table.operator, table.id)
        rows = _reconciled(table, rows, other, function, partial(where, group, int(groups[instance])))
    assert rows is not None  # there are rows
    if table.reconcile is not None and table.reconcile != BY_PROGRAM:
        rows = rows.filter(are_rows(table.reconcile, rows.values).to_numpy(zero_copy_only=False))
    others = found.owner > 0
    given_up = _changes(table, groups[found.owner[others]], "delete", keys[len(own) :])
    return _Instance(table, group, rows, frozenset(own), given_up)


def _instances(owner: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Each instance with rows, with the positions of its first row and after its last row."""
    found, firsts = np.unique(owner, return_index=True)
    yield from zip(found.tolist(), firsts.tolist(), [*firsts[1:].tolist(), len(owner)], strict=True)


def _reconciled(
    table: StateTable, one: _Rows, other: _Rows, function: Reconcile | None, where: Callable[[], str]
) -> _Rows:
    if table.kind is StateKind.LIST:
        return _lists(table, one, other, _function(table, function), where)
    places = pc.index_in(pa.array(other.keys, pa.binary()), value_set=pa.array(one.keys, pa.binary()))
    shared = places.is_valid()
    both = places.drop_null().to_numpy()
    old, new = one.values.take(pa.array(both)), other.values.filter(shared)
    if table.reconcile == BY_PROGRAM:
        values = _by_author(table, old, new, _function(table, function), where)
    else:
        assert table.reconcile is not None  # snapshots/continuation.py refuses fewer subtasks for other tables
        try:
            values = merged(table.reconcile, old.combine_chunks(), new.combine_chunks())
        except OverflowError as error:
            raise AuthorError(f"{where()}: {error}. Declare a wider type.") from error
    alone = pc.invert(shared)
    keys = [*one.keys, *(key for key, is_shared in zip(other.keys, shared.to_pylist(), strict=True) if not is_shared)]
    source = np.arange(len(keys))
    source[both] = len(keys) + np.arange(len(both))
    new_rows = np.concatenate([one.new, np.ones(len(keys) - len(one.keys), bool)])
    new_rows[both] = True
    order = sorted(range(len(keys)), key=keys.__getitem__)
    rows = pa.concat_tables([one.values, other.values.filter(alone), values])
    return _Rows([keys[place] for place in order], rows.take(pa.array(source[order])), new_rows[order])


def _by_author(
    table: StateTable, old: pa.Table, new: pa.Table, function: Reconcile, where: Callable[[], str]
) -> pa.Table:
    fields = Fields(table.id, table.value)
    with AuthorCall(where):
        pairs = zip(_values(fields, old), _values(fields, new), strict=True)
        return _columns(table, fields, [fields.one(function(one, other)) for one, other in pairs])


def _lists(table: StateTable, one: _Rows, other: _Rows, function: Reconcile, where: Callable[[], str]) -> _Rows:
    fields, index = Fields(table.id, table.value), KeyCodec(table.sub_key_schema)
    with AuthorCall(where):
        held = function(_values(fields, one.values), _values(fields, other.values))
        values = _columns(table, fields, [fields.one(element) for element in held])
    keys = index.encode(pa.table([pa.array(range(values.num_rows), pa.int64())], schema=table.sub_key_schema))
    return _Rows(keys, values, np.ones(values.num_rows, bool))


def _function(table: StateTable, function: Reconcile | None) -> Reconcile:
    if function is None:
        raise AssertionError(f"state {table.id!r} requires the author's function to reconcile; its operator has none")
    return function


def _values(fields: Fields, rows: pa.Table) -> list[Any]:
    if fields.single:
        return python_values(column_of(rows, fields.names[0]))
    return named_rows("Value", rows, fields.names)


def _columns(table: StateTable, fields: Fields, values: Sequence[Any]) -> pa.Table:
    columns = zip(fields.columns(values), table.value_schema, strict=True)
    arrays = [value_column(table, each, column, lambda row: "") for column, each in columns]
    return pa.Table.from_arrays(arrays, schema=table.value_schema)


def _changes(
    table: StateTable,
    groups: int | KeyGroups,
    operation: str,
    keys: Sequence[bytes],
    values: pa.Table | None = None,
) -> pa.Table:
    """Changes of full keys, each to its row of ``values``."""
    of = np.full(len(keys), groups, np.int32)
    decoded = KeyCodec(table.key_schema).decode(list(keys))
    absent = [pa.nulls(len(keys), each.type) for each in table.value_schema]
    columns = absent if values is None else values.columns
    arrays = [pa.array(of), pa.repeat(pa.scalar(operation), len(keys)), *decoded.columns, *columns]
    return pa.table(arrays, schema=table.delta_schema)
