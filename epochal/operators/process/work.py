"""``process``: the author's function, once per key and epoch, over rows that stream in the order of the keys.

Only the calls themselves are made one by one. Key boundaries, rows, state and output are handled a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pyarrow as pa

from epochal.declarations.keyed import KeyedProcess, has_timers
from epochal.declarations.state import bind
from epochal.operators.process.author_object import read_only
from epochal.operators.process.contexts import timer_contexts
from epochal.operators.process.due_keys import DueKeys, due_keys
from epochal.operators.process.keyed_calls import KeyedCalls
from epochal.operators.process.stored_timers import StoredTimers
from epochal.operators.process.timers import EVENT, Timer, Timers
from epochal.state.expiry import microseconds
from epochal.tasks.keys import CHUNK_ROWS, Chunk, named, named_rows, spelled, whole_keys
from epochal.tasks.operator import Subtask
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.task_output import OutputBatch
from epochal.tasks.values import column_of

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ProcessWork:
    """The work of ``process``: the author's function, once per key and epoch.

    Only the calls are made one by one; key boundaries, rows, state and output are handled by chunk. ``columns``: the
    names of a row's columns, in the author's order and the spelling of the input. Raises ``AuthorError``, with the key,
    for errors of the author's code, and ``SchemaError`` for values that do not fit the output or a state.
    """

    process: type[KeyedProcess]
    columns: tuple[str, ...]
    event_time: str | None = None
    chunk_rows: int = CHUNK_ROWS
    """The approximate number of rows that are Python objects at a time."""
    hops: bool = False
    """True if rows come from a loop that counts hops; output rows of a key have the maximum of its rows."""
    needs_order: ClassVar[bool] = True

    @property
    def has_timers(self) -> bool:
        return has_timers(self.process)

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        chunks = whole_keys(rows, spelled(self.columns, subtask.key_names), self.chunk_rows)
        if self.has_timers:
            yield from self._run_with_timers(subtask, chunks)
            return
        calls = KeyedCalls(self.process, self.columns, subtask, self.event_time, self.hops)
        bind(calls.author, calls.keyed)
        with read_only(calls.author, f"Operator {subtask.operator!r}"):
            for chunk in chunks:
                yield from calls.process(chunk)

    def _run_with_timers(self, subtask: Subtask, chunks: Iterator[Chunk]) -> Iterator[OutputBatch]:
        interleaved = named(self.event_time, self.process.order_columns()[:1]) is not None
        calls = TimedCalls(self.process, self.columns, subtask, self.event_time, interleaved, self.hops)
        bind(calls.author, calls.keyed)
        with read_only(calls.author, f"Operator {subtask.operator!r}"):
            yield from calls.run(chunks, self.chunk_rows)


class TimedCalls(KeyedCalls):
    """Calls of an author's keyed function with timers, for keys with rows and for keys with due timers.

    ``event_time``: the event-time column, if there is one. ``interleaved``: whether rows are sorted by it, so that rows
    and timers are processed in the order of time.
    """

    def __init__(
        self,
        process: type[KeyedProcess],
        columns: Sequence[str],
        subtask: Subtask,
        event_time: str | None,
        interleaved: bool,
        hops: bool = False,
    ) -> None:
        super().__init__(process, columns, subtask, event_time, hops)
        self._fire = subtask.watermarks.fire
        self._timers = Timers(self._fire, subtask.epoch_time, subtask.draining)
        self._contexts = timer_contexts(subtask, self._timers, event_time is not None)
        self._stored = StoredTimers(subtask)
        self._event_time = event_time if interleaved else None

    def run(self, chunks: Iterator[Chunk], target: int = CHUNK_ROWS) -> Iterator[OutputBatch]:
        """Process all keys of the subtask, with about ``target`` rows, timers and output rows at a time."""
        for due in due_keys(chunks, self._keys, self._subtask.key, self._stored.due(), target):
            for state in self.keyed.values():
                state.begin(due.keys)
            if self._touches_by is not None:
                self._cursor.times = self._latest_times(due.rows, due.ends)
            self._begin_hops(due.rows, due.ends)
            self._timers.begin_chunk()
            with AuthorCall(lambda keys=due.keys: self._where(keys)):  # type: ignore[misc]
                for _ in self._calls(due):
                    if len(self._output) >= target:
                        yield from self._output.take()
            self._stage_states()
            self._stored.stage(due, self._timers.writes)
            yield from self._output.take()
        self._stored.finish()

    def _calls(self, due: DueKeys) -> Iterator[None]:
        """Call the author's function for one key after the other. Yields after each call, so that output can be
        taken."""
        cursor, timers, add, process = self._cursor, self._timers, self._output.add, self.author.process
        rows = [] if due.rows is None else named_rows("Row", due.rows, self._columns)
        times = self._times(due)
        waiting = due.timer_list()
        start = first = 0
        context = self._contexts[0]
        for position, (key, end, last) in enumerate(zip(due.keys.names, due.ends, due.bounds, strict=True)):
            cursor.position = position
            timers.begin(position, waiting[first:last])
            first = last
            if times is not None:
                yield from self._in_order_of_time(key, rows[start:end], times[start:end])
            elif end > start:
                add(process(key, rows[start:end], context))
            start = end
            timers.firing = True
            while (timer := timers.next()) is not None:
                self._fire_timer(key, timer)
                yield
            yield

    def _in_order_of_time(self, key: Any, rows: list[Any], times: list[int]) -> Iterator[None]:
        """Process the rows and timers of a key in the order of time.

        A timer fires before the rows of the same time: a watermark at this time means that all earlier rows have
        arrived."""
        timers, add, process, context = self._timers, self._output.add, self.author.process, self._contexts[0]
        start = 0
        while start < len(rows):
            time = times[start]
            at = timers.next_in_event_time()
            if at is not None and at <= time and (timer := timers.next()) is not None:
                timers.firing = True
                self._fire_timer(key, timer)
                yield
                continue
            end = start + 1
            while end < len(rows) and (time > self._fire or times[end] == time):
                end += 1
            timers.firing = False
            add(process(key, rows[start:end], context))
            start = end
            yield

    def _fire_timer(self, key: Any, timer: Timer) -> None:
        times = self._cursor.times
        if times is not None and timer[0] == EVENT:
            times[self._cursor.position] = max(timer[1], int(times[self._cursor.position]))
        self._output.add(self.author.on_timer(key, _UNIX_EPOCH + timedelta(microseconds=timer[1]), self._contexts[1]))

    def _times(self, due: DueKeys) -> list[int] | None:
        if self._event_time is None or due.rows is None:
            return None
        return microseconds(column_of(due.rows, self._event_time)).to_pylist()  # type: ignore[no-any-return]
