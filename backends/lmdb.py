"""State in LMDB environments on the executors' disks, one per key group, shared by all Python workers of a machine.

Suited to state that is larger than the workers' memory, and to quick starts of new workers: all workers share the
environments that one of them has brought up to date. A view is an LMDB read transaction, isolated from the writes of
other workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

import lmdb

from epochal.backends.boot_folders import boot_folder, cache_identity
from epochal.backends.catch_up import steps
from epochal.backends.delta import DeltaBackend, OpenView
from epochal.backends.encoded_view import Bound, EncodedView, FoundRows
from epochal.backends.lmdb_environment import CacheDamaged, Environment, Read
from epochal.backends.pruning import prunings
from epochal.contracts.identity import EpochKey
from epochal.contracts.state import StateTaskScope
from epochal.errors import SnapshotError
from epochal.state.table import StateTable

_ROUNDS = 8
"""Maximum number of attempts to open a view while other workers move the local store to another epoch."""


class LmdbBackend(DeltaBackend):
    """State backend that keeps its environments below ``cache_directory``."""

    @property
    def kind(self) -> str:
        return "lmdb"

    def open_views(self, scope: StateTaskScope) -> dict[str, OpenView]:
        with _lock:
            for _ in range(_ROUNDS):
                try:
                    reads = self._try_reads(scope)
                except CacheDamaged:
                    continue
                if reads is not None:
                    return {table.id: LmdbView(table, reads) for table in scope.tables}
        raise SnapshotError(
            f"The local store of {self.owner!r} below {self.cache_directory} cannot be brought to {scope.view_at}: "
            "other tasks repeatedly change or damage it. The epoch is rerun."
        )

    def _try_reads(self, scope: StateTaskScope) -> dict[int, Read] | None:
        """Open a read transaction per key group, all at the parent; return ``None`` after catching up lagging
        groups."""
        folder = boot_folder(Path(self.cache_directory) / "lmdb") / cache_identity(self.store, scope)
        tables = [table.id for table in scope.tables]
        environments = {group: _environment(folder / f"{group:05}", tables) for group in scope.groups}
        reads = {group: environment.read() for group, environment in environments.items()}
        lagging: dict[EpochKey | None, list[int]] = {}
        for group, read in reads.items():
            if read.mark != scope.view_at:
                lagging.setdefault(read.mark, []).append(group)
        if not lagging:
            return reads
        for read in reads.values():
            read.close()
        for mark, behind in lagging.items():
            self._catch_up(scope, mark, {group: environments[group] for group in behind})
        return None

    def _catch_up(self, scope: StateTaskScope, mark: EpochKey | None, behind: dict[int, Environment]) -> None:
        for step in steps(self.store, scope, mark, list(behind)):
            behind = {group: behind[group] for group in step.by_cell(behind) if behind[group].apply(step, group, mark)}
            mark = step.key
        by_table = prunings(scope)
        if by_table:
            for environment in behind.values():
                environment.prune(by_table, mark)


class LmdbView(EncodedView):
    """View over one read transaction per key group."""

    def __init__(self, table: StateTable, reads: dict[int, Read]) -> None:
        super().__init__(table)
        self._table = table.id
        self._reads = reads

    def values_in(self, group: int, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._damage_noticed():
            return list(self._reads[group].get_many(self._table, keys))

    def ranges_in(self, group: int, low: Sequence[Bound], high: Sequence[Bound], limit: int | None) -> FoundRows:
        with self._damage_noticed():
            return self._reads[group].ranges(self._table, low, high, limit)

    def close(self) -> None:
        for read in self._reads.values():
            read.close()

    @contextmanager
    def _damage_noticed(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            for read in self._reads.values():
                read.throw_away()
            raise CacheDamaged(
                f"The local store of {self._table!r} was damaged ({error}) and has been deleted; it is rebuilt."
            ) from error


def _environment(folder: Path, tables: Sequence[str]) -> Environment:
    known = _environments.get(folder)
    if known is not None and known.is_current:
        return known
    if known is not None:
        _environments.pop(folder).close()
    try:
        opened = Environment(folder, tables)
    except CacheDamaged:
        opened = Environment(folder, tables)
    _environments[folder] = opened
    return opened


_environments: dict[Path, Environment] = {}
_lock = RLock()


def forget() -> None:
    """Drop every environment; a forked worker must not use those of its parent."""
    global _lock
    _lock = RLock()
    _environments.clear()


os.register_at_fork(after_in_child=forget)
