"""A Delta table through the library ``deltalake``: versions, the marker, and the commit of files.

The marker is an *application transaction* of the log. The log records these and does not enforce them; what makes the
commit exclusive is that the entry of a version is created only if it does not exist. The library repeats a commit on
top of other versions by default, without reading the marker again, so it gets no retries here: a table that is not at
its latest version is always a conflict.

This module translates the library's errors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties, RemoveAction, Transaction

from epochal.backends.delta_lake.address import UNSAFE, DeltaAddress
from epochal.backends.delta_lake.schema import check_features, check_replaceable, check_rows, columns_of
from epochal.backends.delta_lake.transaction import LogEntry, columns_written, entries_of
from epochal.backends.delta_lake.upsert import latest_rows, merge
from epochal.backends.tables.commit_protocol import HeadMoved, Table, TableHead
from epochal.backends.tables.folder import LocalFolder, ObjectFolder, WritableFolder, check_staged, first_line
from epochal.backends.tables.restore_points import TableVersion
from epochal.backends.write_ahead_log import WriteAheadLog, has_log
from epochal.contracts.backend import DecidedEpoch, SinkPlace
from epochal.errors import EpochalError, OutcomeUnknown, SinkError, SinkUnavailable

MARKED: Final = "epochal"
"""Member of the information about a commit, for people: branch, sink and epochs."""

_HISTORY: Final = (100, 1_000, 10_000)
"""Numbers of latest versions that are read from the log, one after the other."""


class DeltaLog(Table):
    """The table of one sink. ``keys``: columns by which rows of the sink's logs replace rows of the table; empty: files
    are appended."""

    def __init__(self, place: SinkPlace, address: DeltaAddress, keys: Sequence[str] = ()) -> None:
        self.sink = place.sink
        self.keys = tuple(keys)
        self.logs = WriteAheadLog(place)
        self._address = address

    @property
    def subject(self) -> str:
        return f"Sink {self.sink!r} ({self._address.target})"

    def find(self, branch: str) -> DeltaVersion | None:
        table = self.opened()
        return None if table is None else DeltaVersion(self, table, branch, f"{branch}/{self.sink}")

    def opened(self) -> DeltaTable | None:
        """The latest version; ``None`` if there is no table. Raises ``SinkError`` and ``SinkUnavailable``."""
        with self.translated("read the table"):
            try:
                return DeltaTable(self._address.url, storage_options=self._address.storage_options())
            except TableNotFoundError:
                return None

    def history(self) -> Iterator[Sequence[TableVersion]]:
        table = self.opened()
        if table is None:
            return
        for most in _HISTORY:
            with self.translated("read the history of the table"):
                entries = table.history(most)
            yield [_version(entry) for entry in entries]
            if len(entries) < most:
                return

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Create the table, unless another process has created it meanwhile."""
        with self.translated("create the table"):
            DeltaTable.create(
                self._address.url,
                Schema.from_arrow(schema),
                mode="ignore",
                partition_by=list(partition_by),
                storage_options=self._address.storage_options(),
            )

    def folder(self) -> WritableFolder:
        """The folder of the table, in this process."""
        # Not with the library's file system, whose requests stop all threads of the process until they are answered.
        if self._address.place is None:
            return LocalFolder(self.subject, self._address.url)
        return ObjectFolder(self.subject, self._address.place)

    def check_conditional(self) -> None:
        """Raises ``SinkError`` if the environment makes the library write log entries without a condition."""
        if os.environ.get(UNSAFE, "").lower() in ("1", "true"):
            raise SinkError(
                f"{self.subject}: {UNSAFE} is set, with which two writers can overwrite each other's versions. Unset "
                "it, and use a store with conditional writes."
            )

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Inside the block, errors of the library become ``SinkError``, or ``SinkUnavailable``."""
        try:
            yield
        except EpochalError:
            raise
        except DeltaProtocolError as error:
            raise SinkError(
                f"{self.subject} could not {what}: {first_line(error)}. The library does not support a feature of the "
                "table. Write to a table without it."
            ) from error
        except PermissionError as error:
            raise SinkError(f"{self.subject} could not {what}: {first_line(error)}.") from error
        except (DeltaError, OSError) as error:
            raise SinkUnavailable(
                f"{self.subject} could not {what}: {first_line(error)}. Check that the store can be reached, and that "
                "the credentials may read and write the table."
            ) from error


def _version(entry: Mapping[str, Any]) -> TableVersion:
    """A version by the information about its commit."""
    number, marked = int(entry["version"]), entry.get(MARKED)
    before = number - 1 if number else None
    if not isinstance(marked, dict) or "epochs" not in marked:
        return TableVersion(number, before)
    return TableVersion(number, before, marked["branch"], tuple(marked["epochs"]))


class DeltaVersion(TableHead):
    """A version of the table, with the marker of one branch."""

    def __init__(self, log: DeltaLog, table: DeltaTable, branch: str, marker: str) -> None:
        self._log = log
        self._table = table
        self._branch = branch
        self._marker_id = marker
        with log.translated("read the marker"):
            self._marker: int | None = table.transaction_version(marker)

    @property
    def marker(self) -> int | None:
        return self._marker

    def commit(self, epochs: Sequence[DecidedEpoch]) -> None:
        handles = [handle for each in epochs for handle in each.handles]
        if self._log.keys and any(has_log(handle) for handle in handles):
            if entries_of(handles):
                raise SinkError(
                    f"{self._log.subject}: epochs before {epochs[-1].epoch} were computed without keys. Start the "
                    "earlier version once, so that they are committed."
                )
            self._upsert(epochs)
            return
        entries = entries_of(handles)
        with self._log.translated("read the table"):
            check_features(self._log.subject, self._table)
            for columns in columns_written(handles):
                self._check_rows(columns, epochs)
        if entries:
            check_staged(
                self._log.folder(),
                self._log.subject,
                [entry.file for entry in entries],
                epochs[-1].scope,
                self._log.sink,
            )
        self._commit(entries, epochs)

    def _check_rows(self, columns: Mapping[str, Any], epochs: Sequence[DecidedEpoch]) -> None:
        try:
            check_rows(self._log.subject, self._table, columns)
        except EpochalError as error:
            numbers = ", ".join(str(each.epoch) for each in epochs)
            raise SinkError(
                f"The table was changed after epoch {numbers} was computed. {error.message} The commit is retried."
            ) from error

    def _upsert(self, epochs: Sequence[DecidedEpoch]) -> None:
        rows = latest_rows(
            (batch for each in epochs for batch in self._log.logs.read(each.scope, each.handles)), self._log.keys
        )
        if rows is None:
            self._commit([], epochs)
            return
        with self._log.translated("read the table"):
            check_features(self._log.subject, self._table)
            check_replaceable(self._log.subject, self._table)
            self._check_rows(columns_of(rows.schema), epochs)
        with self._outcome(epochs[-1].epoch):
            merge(self._table, rows, self._log.keys, self._properties(epochs))

    def _properties(self, epochs: Sequence[DecidedEpoch]) -> CommitProperties:
        return CommitProperties(
            custom_metadata={MARKED: {"branch": self._branch, "epochs": [each.epoch for each in epochs]}},
            max_commit_retries=0,
            app_transactions=[Transaction(self._marker_id, epochs[-1].epoch)],
        )

    def _commit(self, entries: Sequence[LogEntry], epochs: Sequence[DecidedEpoch]) -> None:
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(entry.path, entry.size, dict(entry.partition), now, True, entry.statistics) for entry in entries
        ]
        with self._outcome(epochs[-1].epoch):
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                self._table.metadata().partition_columns,
                commit_properties=self._properties(epochs),
                post_commithook_properties=PostCommitHookProperties(create_checkpoint=True),
            )

    @contextmanager
    def _outcome(self, last: int) -> Iterator[None]:
        """Inside the block, which commits epochs up to ``last``, errors say what is known of the outcome."""
        try:
            yield
        except CommitFailedError as error:
            raise HeadMoved(first_line(error)) from error
        except DeltaProtocolError as error:
            raise SinkError(f"{self._log.subject} cannot commit epoch {last}: {first_line(error)}.") from error
        except (DeltaError, OSError) as error:
            raise OutcomeUnknown(
                f"{self._log.subject}: whether epoch {last} is committed is not known yet: {first_line(error)}. The "
                "marker of the table decides at the next attempt."
            ) from error
