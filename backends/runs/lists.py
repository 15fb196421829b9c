"""Lists of a state table's runs in one process, by epoch, and background merging between epochs.

Small segments stay in the process. A merge replaces adjacent runs of the latest list, and of later lists, by one run. A
thread makes large merges between the tasks of the worker. Tasks do not wait for it, unless the number of runs exceeds
``MOST``.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from threading import RLock
from typing import Final
from uuid import uuid4

import numpy as np

from epochal.backends.runs.merging import merged
from epochal.backends.runs.run import Run, parts_of
from epochal.backends.runs.run_store import Shelf, name_of
from epochal.backends.runs.segment import Mask, Segment
from epochal.contracts.identity import EpochKey
from epochal.errors import EpochalError

FILE_ROWS = 16_384
"""Minimum number of rows of a segment in a file."""
_LISTS = 3
_KEPT_EVERY = 8
"""Interval, in epochs, at which small runs beside large ones are written to files. A new worker then need not begin
at the base."""

FAN_IN: Final = 4
"""Number of runs of similar size that are merged into one."""
MOST: Final = 24
"""Maximum number of runs. Beyond it, tasks merge in the foreground."""

Runs = tuple[Run, ...]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Expiry:
    """Test for the expired rows of a segment. ``name``: the clock."""

    name: str
    gone: Callable[[Segment], Mask]


class Lists:
    """Lists of one state table in one subtask. ``in_order``: whether ranges are read. :attr:`lock` guards everything
    except merging."""

    def __init__(self, shelf: Shelf, groups: range, in_order: bool) -> None:
        self.lock = RLock()
        self.shelf = shelf
        self.groups = groups
        self.in_order = in_order
        self._known: OrderedDict[EpochKey | None, Runs] = OrderedDict()
        self._expiry: Expiry | None = None
        self._merging: Future[None] | None = None
        self._since_kept = 0
        self._ahead: OrderedDict[str, Future[Segment | None]] = OrderedDict()

    def known_at(self, mark: EpochKey) -> Runs | None:
        """Return the runs at an epoch, newest first, if it is among the latest viewed."""
        return self._known.get(mark)

    def stored_at(self, mark: EpochKey) -> Runs | None:
        """Like :meth:`known_at`, from the files that any worker has written."""
        found = self.shelf.at(mark)
        return None if found is None else tuple(found)

    def add(self, segment: Segment, source: str) -> Segment:
        """Store the segment in a file if it is large. ``source``: the store's files from which it was made."""
        return self.shelf.add(segment, name_of(source)) if len(segment) >= FILE_ROWS else segment

    def made_of(self, source: str, rows: int) -> Segment | None:
        """Return the segment that a worker has made from a file with ``rows`` rows, if any."""
        if rows < FILE_ROWS:
            return None
        ahead = self._ahead.pop(source, None)
        if ahead is not None and not ahead.cancel() and (segment := ahead.result()) is not None:
            return segment
        return self.shelf.segment(name_of(source))

    def make_ahead(self, source: str, rows: int, make: Callable[[], Segment]) -> None:
        """Make the segment of a file that the next epoch is likely to read, in the background."""
        if rows < FILE_ROWS:
            return
        with self.lock:
            self._ahead[source] = _thread().submit(self._made_ahead, make)
            while len(self._ahead) > _LISTS:
                self._ahead.popitem(last=False)

    def _made_ahead(self, make: Callable[[], Segment]) -> Segment | None:
        try:
            return make()
        except EpochalError as error:
            logger.warning("A segment of state below %s is created later. %s", self.shelf.folder, error)
            return None

    def compacted(self, runs: Runs, expiry: Expiry) -> Runs:
        """Return ``runs`` after the merges that need no background thread."""
        while (chosen := due([len(run) for run in runs])) is not None:
            part = runs[chosen.start : chosen.stop]
            if sum(map(len, part)) >= FILE_ROWS and len(runs) <= MOST:
                break
            one = self._merged(part, expiry if chosen.stop == len(runs) else None)
            runs = (*runs[: chosen.start], one, *runs[chosen.stop :])
        return runs

    def show(self, mark: EpochKey | None, runs: Runs, expiry: Expiry, links: int, afresh: bool = False) -> None:
        """Record ``runs`` as the table at ``mark``, ``links`` epochs after the last known one.

        ``afresh``: building them was expensive, so they are written to files for other workers.
        """
        self._known[mark] = runs
        self._known.move_to_end(mark)
        while len(self._known) > _LISTS:
            self._known.popitem(last=False)
        self._expiry = expiry
        if mark is None or not any(segment.name for run in runs for segment in run.segments):
            return
        self._since_kept += links
        if afresh or self._since_kept >= _KEPT_EVERY or all(run.is_in_files for run in runs):
            self._keep(mark, runs)

    def _keep(self, mark: EpochKey, runs: Runs) -> None:
        """Write the runs to files, for other workers."""
        in_files = tuple(run if run.is_in_files else self._filed(run) for run in runs)
        self._replace(runs, in_files, mark)
        self.shelf.keep(mark, in_files)
        self._since_kept = 0

    def _filed(self, run: Run) -> Run:
        of_run = (each if each.name else self.shelf.add(each, name_of(uuid4().hex)) for each in run.segments)
        return Run(tuple(of_run))

    def merge_beside(self) -> None:
        """Start the due merge in the background, unless one is in progress."""
        with self.lock:
            if self._merging is not None and not self._merging.done():
                return
            if self._next() is not None:
                self._merging = _thread().submit(self._merge)

    def wait(self) -> None:
        """Wait until all background work has finished."""
        for ahead in self._ahead.values():
            ahead.result()
        if self._merging is not None:
            self._merging.result()

    def _next(self) -> tuple[EpochKey | None, Runs, Expiry | None] | None:
        if not self._known:
            return None
        mark, runs = next(reversed(self._known.items()))
        chosen = due([len(run) for run in runs])
        if chosen is None:
            return None
        return mark, runs[chosen.start : chosen.stop], self._expiry if chosen.stop == len(runs) else None

    def _merge(self) -> None:
        try:
            with self.shelf.merging() as alone:
                while alone:
                    with self.lock:
                        chosen = self._next()
                    if chosen is None:
                        return
                    mark, part, expiry = chosen
                    one = self._merged(part, expiry)
                    with self.lock:
                        self._replace(part, (one,), mark)
                        if (
                            mark in self._known
                            and mark is not None
                            and all(run.is_in_files for run in self._known[mark])
                        ):
                            self.shelf.keep(mark, self._known[mark])
        except EpochalError as error:
            logger.warning("Runs of state below %s were not merged; merging is retried. %s", self.shelf.folder, error)

    def _merged(self, part: Runs, expiry: Expiry | None) -> Run:
        """Merge ``part`` into one run. ``expiry``: set when ``part`` includes the oldest run."""
        source = None
        if all(run.is_in_files for run in part):
            names = [str(segment.name) for run in part for segment in run.segments]
            source = "|".join(["not the oldest" if expiry is None else expiry.name, *names])
        return self.merge(part, expiry, source)

    def merge(self, runs: Runs, expiry: Expiry | None, source: str | None) -> Run:
        """Merge the subtask's rows of ``runs``, newest first, into one run, a part of the key groups at a time.

        ``expiry``: set when no older run lies below ``runs``. ``source``: names the runs, if all are in files; the
        result of an earlier merge with the same source is used.
        """
        segments = [segment for run in runs for segment in run.segments]
        parts = parts_of(self.groups, sum(segment.nbytes for segment in segments))
        names = [name_of(source or uuid4().hex, str(part.start), str(part.step)) for part in parts]
        if source is not None and (found := self.shelf.run(names)) is not None:
            return found
        if len(parts) == 1:
            one = self._merged_part(segments, parts[0], expiry)
            return Run((self.shelf.add(one, names[0]) if len(one) >= FILE_ROWS else one,))
        begun: list[tuple[Segment, str]] = []
        try:
            for part, name in zip(parts, names, strict=True):
                begun.append((self.shelf.begun(self._merged_part(segments, part, expiry)), name))
        except BaseException:
            self.shelf.discard(segment for segment, _ in begun)
            raise
        return Run(tuple(self.shelf.complete(begun)))

    def _merged_part(self, segments: Sequence[Segment], groups: range, expiry: Expiry | None) -> Segment:
        asked = set(groups)
        holding = [segment for segment in segments if not asked.isdisjoint(segment.key_groups.tolist())]
        mine = [segment.of_groups(groups) for segment in holding or segments[:1]]
        return merged(mine, None if expiry is None else [expiry.gone(segment) for segment in mine], self.in_order)

    def _replace(self, part: Runs, by: Runs, mark: EpochKey | None) -> None:
        """Replace runs in the lists of this epoch and of later ones, whose clocks are not behind."""
        least = -1 if mark is None else mark.epoch
        for at, runs in self._known.items():
            if (-1 if at is None else at.epoch) < least:
                continue
            for first in range(len(runs) - len(part) + 1):
                if runs[first : first + len(part)] == part:
                    self._known[at] = (*runs[:first], *by, *runs[first + len(part) :])
                    break


def no_expiry() -> Expiry:
    """Expiry of a table whose rows never expire."""
    return Expiry("nothing expires", lambda run: np.zeros(len(run), bool))


_threads: list[ThreadPoolExecutor] = []


def _thread() -> ThreadPoolExecutor:
    if not _threads:
        _threads.append(ThreadPoolExecutor(1, "runs-merging"))
    return _threads[0]


def forget() -> None:
    """Drop the thread pool; a forked worker does not inherit its parent's threads."""
    _threads.clear()


os.register_at_fork(after_in_child=forget)


def due(rows: Sequence[int]) -> range | None:
    """Return the positions of the runs to merge, given the rows of each, newest first; ``None`` if no merge is due."""
    count = len(rows)
    if count > FAN_IN and sum(rows[:-1]) >= rows[-1]:
        return range(count)
    for first in range(count - FAN_IN + 1):
        together = list(accumulate(rows[first:]))
        stop = 1
        while first + stop < count and rows[first + stop] <= together[stop - 1]:
            stop += 1
        if stop >= FAN_IN:
            return range(first, first + stop)
    return None


def rescaled(lists: Lists, marks: Sequence[EpochKey | None], least: int, expiry: Expiry) -> tuple[Runs, int] | None:
    """Return the subtask's runs after a rescale, and the position of their epoch in ``marks``.

    Chooses the latest epoch, at position ``least`` or later, for which every previous subtask of these key groups has
    its runs in files; ``None`` if there is none.
    """
    covering = [having for others in lists.shelf.others() if (having := _covering(others, lists.groups))]
    for place in range(len(marks) - 1, least - 1, -1):
        mark = marks[place]
        for shelves in covering:
            if mark is not None and (found := _at(shelves, mark)) is not None:
                return _side_by_side(lists, found, expiry), place
    return None


def _covering(others: Sequence[tuple[range, Shelf]], groups: range) -> list[Shelf]:
    """Return the stores of one parallelism that had any of these key groups; empty unless together they had all."""
    asked_for = set(groups)
    having = [(theirs, shelf) for theirs, shelf in others if not asked_for.isdisjoint(theirs)]
    return [shelf for _, shelf in having] if asked_for <= {group for theirs, _ in having for group in theirs} else []


def _at(shelves: Sequence[Shelf], mark: EpochKey) -> list[list[Run]] | None:
    found = []
    for shelf in shelves:
        if (runs := shelf.at(mark)) is None:
            return None
        found.append(runs)
    return found


def _side_by_side(lists: Lists, others: Sequence[Sequence[Run]], expiry: Expiry) -> Runs:
    runs = []
    for age in range(max(map(len, others))):
        alike = tuple(theirs[-1 - age] for theirs in others if age < len(theirs))
        names = [str(segment.name) for run in alike for segment in run.segments]
        source = "|".join(["of other key groups", "" if age else expiry.name, *names])
        one = lists.merge(alike, None if age else expiry, source)
        if len(one):
            runs.append(one)
    return tuple(reversed(runs))
