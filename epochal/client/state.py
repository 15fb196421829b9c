"""Look-ups in state tables, for both clients."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from importlib import import_module
from typing import Any, Concatenate, Literal, ParamSpec

from epochal.client.exchanges import (
    PAGE,
    Exchange,
    Result,
    asked,
    document,
    key_segment,
    path,
    posted,
    survives_in_path,
)
from epochal.client.models import Blame, KeyHistory, Scan, ScannedRow, StateLookup, StateValue
from epochal.client.transport import AsyncTransport, Transport
from epochal.errors import EnvironmentProblem, InvalidInput
from epochal.wire.bodies import read
from epochal.wire.state import ARROW_STREAM, NEXT_CURSOR, SINCE

Isolation = Literal["read_committed", "read_uncommitted"]


# Time for the request itself, in addition to the requested wait for an epoch.
ANSWER_SECONDS = 30.0


# A page of a history may read two thousand epochs from a remote store.
HISTORY_SECONDS = 300.0


class StateExchanges:
    """Exchanges for one state table. Their docstrings are also those of the client's methods."""

    def __init__(self, application: str, table: str) -> None:
        self._path = path("applications", application, "state", table)

    def get(
        self,
        *key: Any,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        at: datetime | None = None,
        min_epoch: int | None = None,
        wait_seconds: float | None = None,
        isolation: Isolation | None = None,
    ) -> Exchange[StateValue]:
        """Look up one key, given by the values of its columns in order; ``None`` is null.

        ``epoch``, ``savepoint``, ``tag`` or ``at`` (the latest state at that time) selects an older snapshot.
        ``min_epoch``: wait up to ``wait_seconds`` until this epoch is committed. Raises ``NotFound`` (no such table
        or key), ``InvalidKey``, ``SnapshotExpired``, ``NotYetCommitted``.
        """
        query = {
            **_moment(epoch, savepoint, tag, at),
            "min_epoch": min_epoch,
            "wait_seconds": wait_seconds,
            "isolation": isolation,
        }
        timeout = None if wait_seconds is None else wait_seconds + ANSWER_SECONDS
        segment = key_segment(key)
        if survives_in_path(segment):
            request = asked(f"{self._path}/keys/{segment}", query, timeout)
        else:
            request = asked(f"{self._path}/keys", {"key": segment, **query}, timeout)
        return read(StateValue, document((yield request)))

    def lookup(
        self,
        keys: Sequence[Mapping[str, Any]],
        *,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        at: datetime | None = None,
        min_epoch: int | None = None,
        isolation: Isolation | None = None,
    ) -> Exchange[StateLookup]:
        """Look up at most 10,000 keys, each an object by column name, in one epoch. Answers have the same order."""
        body = _batch(keys, _moment(epoch, savepoint, tag, at), min_epoch, isolation)
        return read(StateLookup, document((yield posted(f"{self._path}/lookup", body, changes=False))))

    def lookup_table(
        self,
        keys: Sequence[Mapping[str, Any]],
        *,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        at: datetime | None = None,
        min_epoch: int | None = None,
        isolation: Isolation | None = None,
    ) -> Exchange[Any]:
        """Variant of :meth:`lookup` that returns a ``pyarrow.Table``: one row per key in order, with ``_found`` and
        the value columns. The schema's metadata contain ``epoch``, ``branch``, ``table``, ``isolation`` and, as JSON
        text, ``since`` if :meth:`lookup` has it.

        Raises ``EnvironmentProblem`` without pyarrow, ``InvalidInput`` for overlapping windows and for all instances of
        partial state, which support JSON only.
        """
        ipc = _installed("pyarrow.ipc")
        body = _batch(keys, _moment(epoch, savepoint, tag, at), min_epoch, isolation)
        answer = yield posted(f"{self._path}/lookup", body, changes=False, accept=ARROW_STREAM)
        return ipc.open_stream(answer.content).read_all()

    def lookup_frame(self, /, keys: Sequence[Mapping[str, Any]], **options: Any) -> Exchange[Any]:
        """Variant of :meth:`lookup_table` that returns a pandas ``DataFrame`` with Arrow types, so that integers with
        nulls stay integers. ``frame.attrs`` contains ``since`` if :meth:`lookup` has it."""
        pandas = _installed("pandas")
        found = yield from self.lookup_table(keys, **options)
        return _frame(pandas, found, found)

    def scan(
        self,
        *prefix: Any,
        begins_with: bool = False,
        limit: int = PAGE,
        cursor: str | None = None,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        at: datetime | None = None,
        isolation: Isolation | None = None,
    ) -> Exchange[Scan]:
        """At most ``limit`` rows in key order, restricted to keys with these leading columns.

        ``begins_with``: the last given column is a text prefix. ``cursor``: ``next_cursor`` of the previous page; all
        pages are read from one epoch.
        """
        query = _scanned(prefix, begins_with, limit, cursor, isolation, _moment(epoch, savepoint, tag, at))
        return read(Scan, document((yield asked(f"{self._path}/scan", query))))

    def scan_table(
        self,
        *prefix: Any,
        begins_with: bool = False,
        limit: int = PAGE,
        cursor: str | None = None,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        at: datetime | None = None,
        isolation: Isolation | None = None,
    ) -> Exchange[Any]:
        """Variant of :meth:`scan` that returns a ``pyarrow.Table`` with key and value columns. The schema's metadata
        contain ``epoch``, ``branch``, ``table``, ``isolation``, as JSON text ``since`` if :meth:`scan` has it, and
        ``next_cursor`` except on the last page. Raises ``EnvironmentProblem`` without pyarrow.
        """
        ipc = _installed("pyarrow.ipc")
        query = _scanned(prefix, begins_with, limit, cursor, isolation, _moment(epoch, savepoint, tag, at))
        answer = yield asked(f"{self._path}/scan", query, accept=ARROW_STREAM)
        return ipc.open_stream(answer.content).read_all()

    def scan_frame(self, *prefix: Any, **options: Any) -> Exchange[Any]:
        """All rows of a scan as a pandas ``DataFrame`` with Arrow types. ``options``: as for :meth:`scan`.
        ``frame.attrs`` contains ``since`` if :meth:`scan` has it."""
        pyarrow, pandas = _installed("pyarrow"), _installed("pandas")
        pages: list[Any] = []
        more: dict[str, Any] | None = options
        while more is not None:
            page = yield from self.scan_table(*prefix, **more)
            pages.append(page)
            more = following(more, cursor_of(page))
        return _frame(pandas, pyarrow.concat_tables([page.replace_schema_metadata(None) for page in pages]), pages[0])

    def history(
        self,
        *key: Any,
        limit: int | None = 50,
        cursor: str | None = None,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        at: datetime | None = None,
    ) -> Exchange[KeyHistory]:
        """Changes of a key, newest first: at most ``limit``, or all. ``epoch``, ..: only changes up to that snapshot.

        For list and map state, the operator's key selects all entries.
        """
        items: list[Any] = []
        while True:
            size = PAGE if limit is None else min(PAGE, limit - len(items))
            query = {"key": key_segment(key), "limit": size, "cursor": cursor, **_moment(epoch, savepoint, tag, at)}
            answer = document((yield asked(f"{self._path}/history", query, HISTORY_SECONDS)))
            items += answer["items"]
            cursor = answer["next_cursor"]
            if cursor is None or (limit is not None and len(items) >= limit):
                return read(KeyHistory, {**answer, "items": items})

    def blame(
        self,
        *key: Any,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        at: datetime | None = None,
    ) -> Exchange[Blame]:
        """The epoch that last changed a key: its slices (files, offsets), code version, parameters and time.

        Raises ``NotFound`` for a key that never existed, ``SnapshotExpired`` if the epoch has expired.
        """
        query = {"key": key_segment(key), **_moment(epoch, savepoint, tag, at)}
        return read(Blame, document((yield asked(f"{self._path}/blame", query, HISTORY_SECONDS))))


Arguments = ParamSpec("Arguments")


Asking = Callable[Concatenate[StateExchanges, Arguments], Exchange[Result]]


def _blocking(ask: Asking[Arguments, Result]) -> Callable[Concatenate[State, Arguments], Result]:
    @wraps(ask)
    def call(self: State, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return self._transport.run(ask(self._exchanges, *args, **options))

    _describe(call)
    return call


def _awaited(ask: Asking[Arguments, Result]) -> Callable[Concatenate[AsyncState, Arguments], Awaitable[Result]]:
    @wraps(ask)
    async def call(self: AsyncState, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return await self._transport.run(ask(self._exchanges, *args, **options))

    _describe(call)
    return call


def _describe(call: Any) -> None:
    """Set the signature for ``help``: the result without ``Exchange``."""
    signature = inspect.signature(call)
    result = str(signature.return_annotation).removeprefix("Exchange[").removesuffix("]")
    call.__signature__ = signature.replace(return_annotation=result)


class State:
    """``client.application(name).state(table)``. Every answer contains its epoch."""

    def __init__(self, transport: Transport, application: str, table: str) -> None:
        self._transport = transport
        self._exchanges = StateExchanges(application, table)

    get = _blocking(StateExchanges.get)
    lookup = _blocking(StateExchanges.lookup)
    lookup_table = _blocking(StateExchanges.lookup_table)
    lookup_frame = _blocking(StateExchanges.lookup_frame)
    scan = _blocking(StateExchanges.scan)
    scan_table = _blocking(StateExchanges.scan_table)
    scan_frame = _blocking(StateExchanges.scan_frame)
    history = _blocking(StateExchanges.history)
    blame = _blocking(StateExchanges.blame)

    def scan_all(self, *prefix: Any, **options: Any) -> Iterator[ScannedRow]:
        """All rows of a scan, page by page. ``options``: as for :meth:`scan`."""
        more: dict[str, Any] | None = options
        while more is not None:
            page = self.scan(*prefix, **more)
            yield from page.items
            more = following(more, page.next_cursor)

    def scan_tables(self, *prefix: Any, **options: Any) -> Iterator[Any]:
        """All pages of a scan, each as from :meth:`scan_table`."""
        more: dict[str, Any] | None = options
        while more is not None:
            page = self.scan_table(*prefix, **more)
            yield page
            more = following(more, cursor_of(page))


class AsyncState:
    """``client.application(name).state(table)`` of an :class:`~epochal.client.AsyncClient`; see :class:`State`."""

    def __init__(self, transport: AsyncTransport, application: str, table: str) -> None:
        self._transport = transport
        self._exchanges = StateExchanges(application, table)

    get = _awaited(StateExchanges.get)
    lookup = _awaited(StateExchanges.lookup)
    lookup_table = _awaited(StateExchanges.lookup_table)
    lookup_frame = _awaited(StateExchanges.lookup_frame)
    scan = _awaited(StateExchanges.scan)
    scan_table = _awaited(StateExchanges.scan_table)
    scan_frame = _awaited(StateExchanges.scan_frame)
    history = _awaited(StateExchanges.history)
    blame = _awaited(StateExchanges.blame)

    async def scan_all(self, *prefix: Any, **options: Any) -> AsyncIterator[ScannedRow]:
        """See :meth:`State.scan_all`."""
        more: dict[str, Any] | None = options
        while more is not None:
            page = await self.scan(*prefix, **more)
            for row in page.items:
                yield row
            more = following(more, page.next_cursor)

    async def scan_tables(self, *prefix: Any, **options: Any) -> AsyncIterator[Any]:
        """See :meth:`State.scan_tables`."""
        more: dict[str, Any] | None = options
        while more is not None:
            page = await self.scan_table(*prefix, **more)
            yield page
            more = following(more, cursor_of(page))


def following(options: Mapping[str, Any], cursor: str | None) -> dict[str, Any] | None:
    """Options for the next page of a scan; ``None`` after the last page."""
    return None if cursor is None else {**options, "cursor": cursor}


def cursor_of(page: Any) -> str | None:
    """Cursor of the next page, from the metadata of a ``pyarrow.Table``."""
    cursor: bytes | None = page.schema.metadata.get(NEXT_CURSOR.encode())
    return None if cursor is None else cursor.decode()


def _frame(pandas: Any, rows: Any, answer: Any) -> Any:
    """Convert rows to a data frame. ``answer``: table whose metadata contain ``since``."""
    frame = rows.to_pandas(types_mapper=pandas.ArrowDtype)
    since = answer.schema.metadata.get(SINCE.encode())
    if since is not None:
        frame.attrs[SINCE] = json.loads(since)
    return frame


def _installed(module: str) -> Any:
    """Import an optional library. Raises ``EnvironmentProblem`` if it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise EnvironmentProblem(f"This call requires {name}, which is not installed: pip install {name}.") from error


def _batch(
    keys: Sequence[Mapping[str, Any]], moment: dict[str, Any], min_epoch: int | None, isolation: Isolation | None
) -> dict[str, Any]:
    return {"keys": [dict(key) for key in keys], **moment, "min_epoch": min_epoch, "isolation": isolation}


def _scanned(
    prefix: tuple[Any, ...],
    begins_with: bool,
    limit: int,
    cursor: str | None,
    isolation: Isolation | None,
    moment: dict[str, Any],
) -> dict[str, Any]:
    beginning = key_segment(prefix) + ("*" if begins_with else "")
    return {"prefix": beginning, "limit": limit, "cursor": cursor, "isolation": isolation, **moment}


def _moment(epoch: int | None, savepoint: str | None, tag: str | None, at: datetime | None) -> dict[str, Any]:
    return {"epoch": epoch, "savepoint": savepoint, "tag": tag, "at": None if at is None else zoned(at)}


def zoned(at: datetime) -> str:
    """ISO 8601 with its zone. Raises ``InvalidInput`` for a time without a zone, which is ambiguous."""
    if at.tzinfo is None:
        raise InvalidInput(f"{at} has no time zone; give one, as in datetime.now(timezone.utc).")
    return at.isoformat()
