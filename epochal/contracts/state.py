"""The state backend: views of state tables at epoch n-1, and the write set of epoch n (design decision 1).

A task never changes state in place. ``start`` returns a stable view of the parent snapshot, the task stages its
changes, and ``pre_commit`` writes them as one delta per state table. Local stores (heap, LMDB) are caches that catch up
from deltas.
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
    """A stateful subtask: its state tables, and their chains of files at the parent epoch."""

    parallelism: int
    max_parallelism: int
    tables: tuple[StateTable, ...]
    chains: Mapping[str, Chain]

    @property
    def view_at(self) -> EpochKey | None:
        return self.epoch.parent

    def by_groups(self) -> Iterator[StateTaskScope]:
        """This scope split by tables of which the subtask reads the same key groups."""
        alike: dict[StateScope, list[StateTable]] = {}
        for table in self.tables:
            alike.setdefault(table.scope.read_like, []).append(table)
        for tables in alike.values():
            yield replace(self, tables=tuple(tables), chains={table.id: self.chains[table.id] for table in tables})

    @property
    def groups(self) -> range:
        """Key groups that the subtask reads, for a scope of :meth:`by_groups`."""
        return self.tables[0].scope.groups_read(self.subtask, self.parallelism, self.max_parallelism)


@dataclass(frozen=True)
class StateRows:
    """Rows of some ranges, in the order of the ranges and of the keys within each.

    ``owner[i]`` is the position of the range of row i; ``keys`` are encoded full keys, ``values`` the value
    columns.
    """

    owner: npt.NDArray[np.int64]
    keys: pa.BinaryArray
    values: pa.Table


class StateView(ABC):
    """One state table at the parent epoch, limited to the key groups of this subtask. Stable until the transaction
    ends.

    Full keys are the bytes of :class:`epochal.state.key_codec.KeyCodec`, in the order of their columns; values have
    ``StateTable.value_schema``. Callers use only those key groups. The view hides rows that have expired by
    the chain's clock.
    """

    @abstractmethod
    def lookup(self, groups: KeyGroups, keys: pa.BinaryArray) -> tuple[Found, pa.Table]:
        """Existence and value columns of keys: a row per key, in their order, null for a missing key.

        ``groups[i]`` is the key group of ``keys[i]``. Keys may repeat.
        """

    @abstractmethod
    def ranges(
        self, groups: KeyGroups, low: pa.BinaryArray, high: pa.BinaryArray, limit: int | None = None
    ) -> StateRows:
        """All rows of many ranges of keys: range i has the keys of ``groups[i]`` with ``low[i] <= key < high[i]``.

        A null bound is open. ``limit``: maximum number of rows per range, its first ones; to continue, pass the last
        key plus one zero byte as ``low``. Ranges may overlap.
        """

    def range(
        self, group: int, low: bytes | None = None, high: bytes | None = None, limit: int | None = None
    ) -> tuple[pa.BinaryArray, pa.Table]:
        """Keys of one range, ascending, and their value columns. As :meth:`ranges` for one range."""
        rows = self.ranges(
            np.array([group], np.int32), pa.array([low], pa.binary()), pa.array([high], pa.binary()), limit
        )
        return rows.keys, rows.values

    def scan(self, group: int, prefix: bytes) -> tuple[pa.BinaryArray, pa.Table]:
        """Keys of one key group that begin with ``prefix``, ascending, and their value columns."""
        return self.range(group, prefix, end_of_prefix(prefix))

    def get(self, group: int, key: bytes) -> Mapping[str, Any] | None:
        """Value columns of one key as Python values; ``None`` for a missing key.

        For keys that become known one by one, as in reads of a map state. The values are those of
        ``pyarrow.Scalar.as_py``. A backend with a faster single look-up overrides it.
        """
        found, values = self.lookup(np.array([group], np.int32), pa.array([key], pa.binary()))
        return cast("Mapping[str, Any]", values.to_pylist()[0]) if found[0] else None


def end_of_prefix(prefix: bytes) -> bytes | None:
    """Smallest byte string above all that begin with ``prefix``; ``None`` if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


class StateTransaction(Transaction):
    """The write set of one stateful task over its views."""

    @abstractmethod
    def view(self, table: str) -> StateView:
        """The view of a state table, by its id (``StateTable.id``)."""

    @abstractmethod
    def stage(self, table: str, changes: pa.Table) -> None:
        """Add changes: columns of ``StateTable.delta_schema``, at most one row per full key and transaction."""


class StateBackend(Backend[StateTransaction]):
    """``start`` takes a :class:`StateTaskScope`. ``commit`` is empty: caches catch up from the published chain."""

    @abstractmethod
    def deltas(self, handle: Handle) -> tuple[DeltaFile, ...]:
        """The delta files that a handle of this backend names."""

    def cached(self, handle: Handle) -> Mapping[str, tuple[str, bool]]:
        """By state table that is not durable: the name of the cache entry of the handle's subtask, empty without one,
        and whether the subtask began empty although an entry had existed."""
        return {}

    @property
    def cache_name(self) -> str | None:
        """The name of this machine's cache, the same in all of its processes and different on other machines.

        ``None`` if caches have no names; then subtasks have no placement (:mod:`epochal.engine.placement`)."""
        return None

    has_cached_state: ClassVar[bool] = False
    """True if the backend supports state tables that are not durable; see :meth:`cached`."""
