"""The runs of one state table on an executor's disk, shared by the Python workers of the machine.

    {cache}/heap/{boot}/{identity}/{key groups}/{name}.run            a run
    {cache}/heap/{boot}/{identity}/{key groups}/at/{epoch}-{..}.json  which runs are the table at an epoch

A run is named by the files of the store that it was made of, or by the runs that were merged into it; what is in a list
is what a decided epoch showed. So nobody sees anything of an epoch that was aborted, or of another copy of a task.
Whatever is missing or damaged is made again from the store.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4
from weakref import WeakValueDictionary

from epochal.backends.boot_folders import throw_away
from epochal.backends.runs.run import Run
from epochal.backends.runs.run_file import PART, RunDamaged, mapped, written
from epochal.background.locks import FileLock
from epochal.contracts.identity import EpochKey
from epochal.errors import SnapshotError
from epochal.snapshots.store import storage_errors

KEPT_LISTS = 3
"""Of the epochs that were looked at last: their runs stay, for tasks of an epoch that is run again."""
_ABANDONED_SECONDS = 3600.0
"""Nobody writes to a file for so long: its writer was killed. Nobody looks for so long at what subtasks of another
parallelism had: the operator was rescaled."""
_FOLDER = re.compile(r"(\d+)-(\d+)-([1-9]\d*)")


class Shelf:
    """One folder. Several processes and threads may use it at once: files come whole, and under names that say what is
    in them; lists change under a lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lists = folder / "at"

    def at(self, mark: EpochKey) -> list[Run] | None:
        """The table's runs at an epoch, newest first; ``None`` where one is missing or damaged."""
        try:
            names = json.loads((self._lists / _list_name(mark)).read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            raise SnapshotError(f"The local store {self.folder} cannot be read: {error}.") from error
        if not (names and isinstance(names, list) and all(isinstance(name, str) for name in names)):
            return None
        runs = [run for name in names if (run := self.run(name)) is not None]
        return runs if len(runs) == len(names) else None

    def run(self, name: str) -> Run | None:
        """The run in a file; ``None`` where there is none, or a damaged one, which goes."""
        path = self.folder / Path(name).name
        known = _open.get(path)
        if known is not None and path.exists():
            return known
        try:
            known = _open[path] = mapped(path)
        except FileNotFoundError:
            return None
        except RunDamaged:
            path.unlink(missing_ok=True)
            return None
        except OSError as error:
            raise SnapshotError(f"The local store {path} cannot be read: {error}.") from error
        return known

    def add(self, run: Run, name: str) -> Run:
        """``run`` in a file. Raises ``StorageFull``, ``SnapshotError``."""
        with storage_errors(str(self.folder)):
            self._lists.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        added = _open[path] = written(run, path)
        return added

    def keep(self, mark: EpochKey, runs: Sequence[Run]) -> None:
        """The table is these runs, all of them in files, at ``mark``; what only earlier looks needed goes.

        Files that somebody removed meanwhile are written again.
        """
        with self._locked("lock") as mine:
            assert mine
            names = [str(run.name) for run in runs]
            for name, run in zip(names, runs, strict=True):
                if not (self.folder / name).exists():
                    self.add(run, name)
            list_name = _list_name(mark)
            beside = self._lists / f".{uuid4().hex}{PART}"
            with storage_errors(str(self._lists / list_name)):
                beside.write_text(json.dumps(names))
                os.replace(beside, self._lists / list_name)
            with suppress(OSError, ValueError, TypeError):
                self._remove_what_nobody_needs()

    def others(self) -> list[list[tuple[range, Shelf]]]:
        """Those of the subtasks of other parallelisms, one list for each, and the key groups that they had."""
        found: dict[int, list[tuple[range, Shelf]]] = {}
        with suppress(FileNotFoundError):
            for folder in self.folder.parent.iterdir():
                if (groups := _groups_of(folder)) is not None and _step(folder) != _step(self.folder):
                    found.setdefault(groups.step, []).append((groups, Shelf(folder)))
        return list(found.values())

    @contextmanager
    def merging(self) -> Iterator[bool]:
        """Whether nobody else on this machine merges runs of this folder meanwhile."""
        with self._locked("merging", wait=False) as mine:
            yield mine

    @contextmanager
    def _locked(self, name: str, wait: bool = True) -> Iterator[bool]:
        """Alone among all processes and threads of the machine."""
        with storage_errors(str(self.folder)):
            self._lists.mkdir(parents=True, exist_ok=True)
            lock = FileLock.acquire(self.folder / name, wait=wait)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()

    def _remove_what_nobody_needs(self) -> None:
        lists = sorted(self._lists.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in lists[:-KEPT_LISTS]:
            path.unlink(missing_ok=True)
        needed = {name for path in lists[-KEPT_LISTS:] for name in json.loads(path.read_bytes())}
        for path in self.folder.glob("*.run"):
            if path.name not in needed:
                path.unlink(missing_ok=True)
        long_ago = time.time() - _ABANDONED_SECONDS
        for path in [*self.folder.glob(f".*{PART}"), *self._lists.glob(f".*{PART}")]:
            if path.stat().st_mtime < long_ago:
                path.unlink(missing_ok=True)
        for other in self.folder.parent.iterdir():
            if _step(other) != _step(self.folder) and (other / "at").stat().st_mtime < long_ago:
                throw_away(other)


def name_of(*sources: str) -> str:
    """Of the run that is made of these files of the store, or of these runs."""
    return f"{hashlib.sha256('|'.join(sources).encode()).hexdigest()[:32]}.run"


def folder_name(groups: range) -> str:
    """Of the key groups that a subtask reads. Those of the subtasks of one parallelism have one step."""
    return f"{groups.start}-{groups.stop}-{groups.step}"


def _groups_of(folder: Path) -> range | None:
    """The inverse of :func:`folder_name`; ``None`` where it is none."""
    found = _FOLDER.fullmatch(folder.name)
    return range(*map(int, found.groups())) if found else None


def _step(folder: Path) -> str:
    return folder.name.rpartition("-")[2]


def _list_name(mark: EpochKey) -> str:
    return f"{mark.epoch:010}-{hashlib.sha256(mark.branch.encode()).hexdigest()[:16]}.json"


_open: WeakValueDictionary[Path, Run] = WeakValueDictionary()


def forget() -> None:
    """Let go of every run, as the process's end would: a forked worker maps its own."""
    _open.clear()


os.register_at_fork(after_in_child=forget)
