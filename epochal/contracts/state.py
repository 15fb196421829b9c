"""The state backend: views of state tables at epoch n-1, and the write set of epoch n (design decision 1).

A task never changes state in place. ``start`` gives a stable view of the parent snapshot, the task stages its changes,
``pre_commit`` writes them as one delta per state table. Local stores (heap, LMDB) are caches that catch up from deltas.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.contracts.backend import Backend, Transaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, TaskScope

if TYPE_CHECKING:
    from epochal.snapshots.chain import Chain
    from epochal.snapshots.manifest import DeltaFile
    from epochal.state.table import StateTable

KeyGroups = npt.NDArray[np.int32]


@dataclass(frozen=True)
class StateTaskScope(TaskScope):
    """A stateful subtask: the tables it owns, and the chain of files that makes up each at the parent epoch."""

    parallelism: int
    max_parallelism: int
    tables: tuple[StateTable, ...]
    chains: Mapping[str, Chain]

    @property
    def view_at(self) -> EpochKey | None:
        return self.epoch.parent


class StateView(ABC):
    """One state table, this subtask's key groups, at the parent epoch. Stable until the transaction ends.

    Keys and values are the bytes of :mod:`epochal.state.codec`.
    """

    @abstractmethod
    def get_many(self, groups: KeyGroups, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, ``None`` where there is none. ``groups[i]`` is the key group of ``keys[i]``."""

    @abstractmethod
    def scan(self, group: int, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All (key, value) of one key group whose key starts with ``prefix``, in key order. For list and map state."""


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
