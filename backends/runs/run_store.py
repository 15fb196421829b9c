"""The runs of one state table on an executor's disk, shared by the Python workers of the machine.

    {cache}/heap/{boot}/{identity}/{key groups}/{name}.run            a segment
    {cache}/heap/{boot}/{identity}/{key groups}/at/{epoch}-{..}.json  list of the table's runs at an epoch

A segment is named by the store's files from which it was made, or by those that were merged into it. A list contains
only what a decided epoch showed: data of an aborted epoch, or of another copy of a task, is never visible. Missing or
damaged files are rebuilt from the store.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4
from weakref import WeakValueDictionary

from pydantic import TypeAdapter, ValidationError

from epochal.backends.boot_folders import throw_away
from epochal.backends.runs.run import Run
from epochal.backends.runs.segment import Segment
from epochal.backends.runs.segment_file import PART, SegmentDamaged, mapped, written
from epochal.background.locks import FileLock
from epochal.contracts.identity import EpochKey
from epochal.errors import SnapshotError
from epochal.snapshots.storage_errors import storage_errors

KEPT_LISTS = 3
"""Number of lists retained, of the latest viewed epochs: their runs serve tasks of an epoch that is run again."""
_ABANDONED_SECONDS = 3600.0
"""Timeout after which an unchanged incomplete file counts as abandoned by a killed writer, and the folder of another
parallelism as left over from an earlier parallelism."""
_NAMES = TypeAdapter(list[list[str]])
"""Names of the segments of each run, newest run first."""
_FOLDER = re.compile(r"(\d+)-(\d+)-([1-9]\d*)")


class Shelf:
    """Store of runs in one folder. Processes and threads may use it concurrently: files appear complete, under names
    derived from their content; lists change under a lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lists = folder / "at"

    def at(self, mark: EpochKey) -> list[Run] | None:
        """Return the table's runs at an epoch, newest first; ``None`` if one is missing or damaged."""
        try:
            names = _NAMES.validate_json((self._lists / _list_name(mark)).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        except OSError as error:
            raise SnapshotError(f"The local store {self.folder} cannot be read: {error}.") from error
        runs = [run for of_run in names if (run := self.run(of_run)) is not None]
        return runs if runs and len(runs) == len(names) else None

    def run(self, names: Sequence[str]) -> Run | None:
        """Return the run with these segments; ``None`` if one is missing or damaged."""
        segments = [segment for name in names if (segment := self.segment(name)) is not None]
        return Run(tuple(segments)) if len(segments) == len(names) else None

    def segment(self, name: str) -> Segment | None:
        """Return the segment in a file; ``None`` if the file is missing or damaged. A damaged file is deleted."""
        path = self.folder / Path(name).name
        known = _open.get(path)
        if known is not None and path.exists():
            return known
        try:
            known = _open[path] = mapped(path)
        except FileNotFoundError:
            return None
        except SegmentDamaged:
            path.unlink(missing_ok=True)
            return None
        except OSError as error:
            raise SnapshotError(f"The local store {path} cannot be read: {error}.") from error
        return known

    def add(self, segment: Segment, name: str) -> Segment:
        """Write ``segment`` to a file. Raises ``StorageFull``, ``SnapshotError``."""
        return self.complete([(self.begun(segment), name)])[0]

    def begun(self, segment: Segment) -> Segment:
        """Write a segment to a file which other processes neither find nor delete. Raises ``StorageFull``,
        ``SnapshotError``."""
        with storage_errors(str(self.folder)):
            self._lists.mkdir(parents=True, exist_ok=True)
        return written(segment, self.folder / f".{uuid4().hex}{PART}")

    def complete(self, begun: Iterable[tuple[Segment, str]]) -> list[Segment]:
        """Give names to segments that :meth:`begun` has written."""
        found = []
        for segment, name in begun:
            with storage_errors(str(self.folder / name)):
                os.replace(self.folder / str(segment.name), self.folder / name)
            found.append(replace(segment, name=name))
            _open[self.folder / name] = found[-1]
        return found

    def discard(self, begun: Iterable[Segment]) -> None:
        """Delete the files of segments that :meth:`begun` has written."""
        for segment in begun:
            (self.folder / str(segment.name)).unlink(missing_ok=True)

    def keep(self, mark: EpochKey, runs: Sequence[Run]) -> None:
        """Record ``runs``, all of them in files, as the table at ``mark``; delete runs that only older lists use.

        Files that have been removed meanwhile are written again.
        """
        with self._locked("lock") as mine:
            assert mine
            names = [[str(segment.name) for segment in run.segments] for run in runs]
            for segment in (segment for run in runs for segment in run.segments):
                if not (self.folder / str(segment.name)).exists():
                    self.add(segment, str(segment.name))
            list_name = _list_name(mark)
            beside = self._lists / f".{uuid4().hex}{PART}"
            with storage_errors(str(self._lists / list_name)):
                beside.write_text(json.dumps(names))
                os.replace(beside, self._lists / list_name)
            with suppress(OSError, ValueError, TypeError):
                self._remove_unneeded_runs()

    def others(self) -> list[list[tuple[range, Shelf]]]:
        """Return the stores of subtasks of other parallelisms, one list per parallelism, with their key groups."""
        found: dict[int, list[tuple[range, Shelf]]] = {}
        with suppress(FileNotFoundError):
            for folder in self.folder.parent.iterdir():
                if (groups := _groups_of(folder)) is not None and _step(folder) != _step(self.folder):
                    found.setdefault(groups.step, []).append((groups, Shelf(folder)))
        return list(found.values())

    @contextmanager
    def merging(self) -> Iterator[bool]:
        """Lock merging of this folder. Yields ``False`` while another process or thread of this machine merges."""
        with self._locked("merging", wait=False) as mine:
            yield mine

    @contextmanager
    def _locked(self, name: str, wait: bool = True) -> Iterator[bool]:
        """Hold a lock that excludes all other processes and threads of the machine."""
        with storage_errors(str(self.folder)):
            self._lists.mkdir(parents=True, exist_ok=True)
            lock = FileLock.acquire(self.folder / name, wait=wait)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()

    def _remove_unneeded_runs(self) -> None:
        lists = sorted(self._lists.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in lists[:-KEPT_LISTS]:
            path.unlink(missing_ok=True)
        needed = {
            name for path in lists[-KEPT_LISTS:] for run in _NAMES.validate_json(path.read_bytes()) for name in run
        }
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
    """Name of the segment that is made from these files of the store, or from these segments."""
    return f"{hashlib.sha256('|'.join(sources).encode()).hexdigest()[:32]}.run"


def folder_name(groups: range) -> str:
    """Name of the folder for the key groups that a subtask reads. All subtasks of one parallelism have the same
    step."""
    return f"{groups.start}-{groups.stop}-{groups.step}"


def _groups_of(folder: Path) -> range | None:
    """Inverse of :func:`folder_name`; ``None`` for another name."""
    found = _FOLDER.fullmatch(folder.name)
    return range(*map(int, found.groups())) if found else None


def _step(folder: Path) -> str:
    return folder.name.rpartition("-")[2]


def _list_name(mark: EpochKey) -> str:
    return f"{mark.epoch:010}-{hashlib.sha256(mark.branch.encode()).hexdigest()[:16]}.json"


_open: WeakValueDictionary[Path, Segment] = WeakValueDictionary()


def forget() -> None:
    """Drop all references to segments; a forked worker maps its own."""
    _open.clear()


os.register_at_fork(after_in_child=forget)
