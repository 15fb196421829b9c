"""The state backend: views of state tables at epoch n-1, and the write set of epoch n (design decision 1).

A task never changes state in place. ``start`` gives a stable view of the parent snapshot, the task stages its changes,
``pre_commit`` writes them as one delta per state table. Local stores (heap, LMDB) are caches that catch up from deltas.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.contracts.backend import Backend, Transaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, TaskScope

if TYPE_CHECKING:
    from epochal.snapshots.chain import Chain
    from epochal.snapshots.manifest import DeltaFile
    from epochal.state.table import StateScope, StateTable

KeyGroups = npt.NDArray[np.int32]
Found = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class StateTaskScope(TaskScope):
    """A stateful subtask: its state tables, and the chain of files that makes up each at the parent epoch."""

    parallelism: int
    max_parallelism: int
    tables: tuple[StateTable, ...]
    chains: Mapping[str, Chain]

    @property
    def view_at(self) -> EpochKey | None:
        return self.epoch.parent

    def by_groups(self) -> Iterator[StateTaskScope]:
        """This scope, once for the tables that the subtask reads the same key groups of."""
        alike: dict[StateScope, list[StateTable]] = {}
        for table in self.tables:
            alike.setdefault(table.scope.read_like, []).append(table)
        for tables in alike.values():
            yield replace(self, tables=tuple(tables), chains={table.id: self.chains[table.id] for table in tables})

    @property
    def groups(self) -> range:
        """The key groups whose rows the subtask reads, of the tables of one of :meth:`by_groups`."""
        return self.tables[0].scope.groups_read(self.subtask, self.parallelism, self.max_parallelism)


@dataclass(frozen=True)
class StateRows:
    """Rows of some ranges, in the order of the ranges and of the keys within each.

    ``owner[i]`` is the position of the range that row i is of; ``keys`` are encoded full keys, ``values`` the value
    columns.
    """

    owner: npt.NDArray[np.int64]
    keys: pa.BinaryArray
    values: pa.Table


class StateView(ABC):
    """One state table, the key groups that this subtask reads, at the parent epoch. Stable until the transaction ends.

    Full keys are the bytes of :class:`epochal.state.key_codec.KeyCodec`, in the order of their columns; values have
    ``StateTable.value_schema``. Callers ask for only those key groups. Rows that have expired
    by the chain's clock are not there.
    """

    @abstractmethod
    def lookup(self, groups: KeyGroups, keys: pa.BinaryArray) -> tuple[Found, pa.Table]:
        """Which keys there are, and the value columns: a row per key, in their order, null where there is no such key.

        ``groups[i]`` is the key group of ``keys[i]``. A key may be asked for twice.
        """

    @abstractmethod
    def ranges(
        self, groups: KeyGroups, low: pa.BinaryArray, high: pa.BinaryArray, limit: int | None = None
    ) -> StateRows:
        """All rows of many ranges of keys: range i has the keys of ``groups[i]`` with ``low[i] <= key < high[i]``.

        A bound that is null is open. ``limit``: at most so many rows of each range, its first ones; whoever needs more
        goes on with the last key and one zero byte more as ``low``. Ranges may overlap.
        """

    def range(
        self, group: int, low: bytes | None = None, high: bytes | None = None, limit: int | None = None
    ) -> tuple[pa.BinaryArray, pa.Table]:
        """The keys of one range, ascending, and the value columns of each. As :meth:`ranges` of one."""
        rows = self.ranges(
            np.array([group], np.int32), pa.array([low], pa.binary()), pa.array([high], pa.binary()), limit
        )
        return rows.keys, rows.values

    def scan(self, group: int, prefix: bytes) -> tuple[pa.BinaryArray, pa.Table]:
        """The keys of one key group that begin with ``prefix``, ascending, and the value columns of each."""
        return self.range(group, prefix, end_of_prefix(prefix))

    def get(self, group: int, key: bytes) -> Mapping[str, Any] | None:
        """The value columns of one key as Python values; ``None`` where there is no such key.

        For keys that become known one after the other, as those that an author asks of a map. The values are those of
        ``pyarrow.Scalar.as_py``. A backend that has something faster than a look-up of one overrides it.
        """
        found, values = self.lookup(np.array([group], np.int32), pa.array([key], pa.binary()))
        return cast("Mapping[str, Any]", values.to_pylist()[0]) if found[0] else None


def end_of_prefix(prefix: bytes) -> bytes | None:
    """The least bytes above all that begin with ``prefix``; ``None`` where there are none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


class StateTransaction(Transaction):
    """The write set of one stateful task over its views."""

    @abstractmethod
    def view(self, table: str) -> StateView:
        """The view of a state table, by its id (``StateTable.id``)."""

    @abstractmethod
    def stage(self, table: str, changes: pa.Table) -> None:
        """Add changes: columns of ``StateTable.delta_schema``, at most one row per full key a transaction."""


class StateBackend(Backend[StateTransaction]):
    """``start`` takes a :class:`StateTaskScope`. ``commit`` is empty: caches catch up from the published chain."""

    @abstractmethod
    def deltas(self, handle: Handle) -> tuple[DeltaFile, ...]:
        """The delta files that a handle of this backend names."""

    def cached(self, handle: Handle) -> Mapping[str, tuple[str, bool]]:
        """By state table that is not durable: the name of what the handle's subtask holds of it in a cache, empty where
        that is nothing; and whether it had to begin empty, though there had been something."""
        return {}

    has_cached_state: ClassVar[bool] = False
    """Whether state tables need not be durable. One that says so keeps them as :meth:`cached` names."""
