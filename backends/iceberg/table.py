"""An Iceberg table through the library ``pyiceberg``: snapshots, the marker, and the commit of files.

The marker is a property of the table, set in the same commit as the snapshot with the rows. Each commit requires that
the branch ``main`` is still at the snapshot that was read with the marker. A commit that only sets properties would
have no such requirement, so there is none: an epoch that is given up gets an empty snapshot.

``Transaction.commit_transaction`` of the library is never called. With retries it commits an epoch again on top of a
commit whose answer was lost. Without retries it deletes the manifests of a commit that has landed and was answered with
409. Here the changes that :mod:`epochal.backends.iceberg.append` stages are passed to the catalog directly, once, and
no file is deleted after any answer.

This module translates the library's errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import requests
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table as LibraryTable
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate
from sqlalchemy.exc import SQLAlchemyError

from epochal.backends.iceberg.address import IcebergAddress
from epochal.backends.iceberg.append import staged_append
from epochal.backends.iceberg.data_file import decoded, entries_of, schemas_of
from epochal.backends.iceberg.schema import check_evolved, check_supported, new_partitions, new_schema
from epochal.backends.tables.commit_protocol import HeadMoved, Table, TableHead
from epochal.backends.tables.folder import ArrowFolder, StagedFile, check_staged, first_line
from epochal.backends.tables.restore_points import TableVersion
from epochal.contracts.backend import DecidedEpoch
from epochal.contracts.handle import Handle
from epochal.errors import EpochalError, OutcomeUnknown, SinkError, SinkUnavailable

MARKER: Final = "epochal.epoch"
"""Beginning of the property with the marker, and of the members of a snapshot's summary, for people."""
_PAUSE_AFTER_FAILURE: Final = 100
"""Number of commits before manifests that could not be merged are read again."""
_REFUSED: Final = (BadRequestError, UnauthorizedError, ForbiddenError, PermissionError)


class IcebergTable(Table):
    """The table of one sink."""

    def __init__(self, sink: str, address: IcebergAddress) -> None:
        self.sink = sink
        self._address = address
        self._commits_without_merges = 0

    @property
    def subject(self) -> str:
        return f"Sink {self.sink!r} ({self._address.target})"

    def find(self, branch: str) -> IcebergHead | None:
        table = self.opened()
        return None if table is None else IcebergHead(self, table, branch)

    def opened(self) -> LibraryTable | None:
        """The latest version; ``None`` if there is no table. Raises ``SinkError`` and ``SinkUnavailable``."""
        with self.translated("read the table"):
            try:
                return self._address.catalog.connect().load_table(self._address.table)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def history(self) -> Iterator[Sequence[TableVersion]]:
        table = self.opened()
        if table is not None and (latest := table.current_snapshot()) is not None:
            yield [_version(snapshot) for snapshot in ancestors_of(latest, table.metadata)]

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Create the table, unless another process has created it meanwhile."""
        with self.translated("create the table"):
            columns = new_schema(self.subject, schema)
            try:
                self._address.catalog.connect().create_table(
                    self._address.table, columns, partition_spec=new_partitions(self.subject, columns, partition_by)
                )
            except TableAlreadyExistsError:
                pass
            except NoSuchNamespaceError:
                namespace = self._address.table.rpartition(".")[0]
                raise SinkError(
                    f"{self.subject}: the catalog has no namespace {namespace!r}. Create it, and start again."
                ) from None

    def commit(
        self, table: LibraryTable, updates: Sequence[Any], requirements: Sequence[Any], action: str, outcome: str
    ) -> None:
        """Pass a commit to the catalog, once. ``action``, ``outcome``: for messages, as ``commit epoch 1`` and
        ``epoch 1 is committed``. Raises ``HeadMoved``, ``OutcomeUnknown`` and ``SinkError``, the latter only if
        nothing was committed."""
        try:
            table.catalog.commit_table(table, tuple(requirements), tuple(updates))
        except CommitFailedException as error:
            raise HeadMoved(first_line(error)) from error
        except (NoSuchTableError, *_REFUSED) as error:
            raise SinkError(f"{self.subject} cannot {action}: {first_line(error)}.") from error
        except Exception as error:
            raise OutcomeUnknown(
                f"{self.subject}: whether {outcome} is not known yet: {first_line(error)}. The table is read again at "
                "the next attempt, and decides."
            ) from error

    def may_merge(self) -> bool:
        """Return whether the commit that is being prepared may merge small manifests."""
        if self._commits_without_merges:
            self._commits_without_merges -= 1
            return False
        return True

    def pause_merges(self, commits: int) -> None:
        """Merge no manifests in the next commits."""
        self._commits_without_merges = max(commits, self._commits_without_merges)

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Inside the block, errors of the library become ``SinkError``, or ``SinkUnavailable``."""
        try:
            yield
        except EpochalError:
            raise
        except _REFUSED as error:
            raise SinkError(
                f"{self.subject} could not {what}: {first_line(error)}. Check the properties and credentials of the "
                "catalog and of its files."
            ) from error
        except (RESTError, SQLAlchemyError, OSError, requests.RequestException) as error:
            raise SinkUnavailable(
                f"{self.subject} could not {what}: {first_line(error)}. Check that the catalog and its files can be "
                "reached."
            ) from error
        except Exception as error:  # the library raises ValueError and others for metadata that it cannot read
            raise SinkError(f"{self.subject} could not {what}: {first_line(error)}.") from error


def _version(snapshot: Snapshot) -> TableVersion:
    """A snapshot by its summary."""
    summary: Mapping[str, str] = snapshot.summary or {}
    epochs = summary.get(f"{MARKER}s") or ""
    return TableVersion(
        snapshot.snapshot_id,
        snapshot.parent_snapshot_id,
        summary.get(f"{MARKER}.branch") or "",
        tuple(int(number) for number in epochs.split(",") if number.isdigit()),
    )


class IcebergHead(TableHead):
    """The latest version of the table, with the marker of one branch."""

    def __init__(self, place: IcebergTable, table: LibraryTable, branch: str) -> None:
        self._place = place
        self._table = table
        self._branch = branch
        self._property = f"{MARKER}.{branch}.{place.sink}"

    @property
    def marker(self) -> int | None:
        value = self._table.properties.get(self._property)
        if value is not None and not value.isdigit():
            raise SinkError(
                f"{self._place.subject}: the property {self._property} of the table is {value!r}, and not the number "
                "of an epoch. Restore it."
            )
        return None if value is None else int(value)

    def commit(self, epochs: Sequence[DecidedEpoch]) -> None:
        handles = [handle for each in epochs for handle in each.handles]
        entries = entries_of(handles)
        with self._place.translated("read the table"):
            check_supported(self._place.subject, self._table.metadata)
            for number in schemas_of(handles):
                check_evolved(self._place.subject, self._place.sink, self._table.metadata, number, entries, epochs)
        if entries:
            folder = data_folder(self._place.subject, self._table)
            files = [StagedFile(folder.relative(entry["path"]), entry["size"]) for entry in entries]
            check_staged(folder, self._place.subject, files, epochs[-1].scope, self._place.sink)
        self._commit(self._decoded(handles), epochs)

    def _decoded(self, handles: Sequence[Handle]) -> list[DataFile]:
        metadata = self._table.metadata
        return [
            decoded(entry, metadata, metadata.schema_by_id(handle.payload["schema"]) or metadata.schema())
            for handle in handles
            for entry in handle.payload.get("files", [])
        ]

    def _commit(self, files: Sequence[DataFile], epochs: Sequence[DecidedEpoch]) -> None:
        last = epochs[-1].epoch
        with self._place.translated(f"prepare the commit of epoch {last}"):
            updates, requirements = self._staged(files, epochs)
        try:
            commits, committed = f"commit epoch {last}", f"epoch {last} is committed"
            self._place.commit(self._table, updates, requirements, commits, committed)
        except HeadMoved:
            self._place.pause_merges(1)  # the next attempt takes less time, so that it is less likely to conflict
            raise

    def _staged(self, files: Sequence[DataFile], epochs: Sequence[DecidedEpoch]) -> tuple[Any, Any]:
        """Updates and requirements of the commit. Writes a manifest with the files, and the list of manifests."""
        shown = {f"{MARKER}.branch": self._branch, f"{MARKER}s": ",".join(str(each.epoch) for each in epochs)}
        append = staged_append(self._table, files, shown, self._place.may_merge())
        if append.merge_failed:
            self._place.pause_merges(_PAUSE_AFTER_FAILURE)
        marker = SetPropertiesUpdate(updates={self._property: str(epochs[-1].epoch)})
        same_table = AssertTableUUID(uuid=self._table.metadata.table_uuid)
        return (*append.updates, marker), (*append.requirements, same_table)


def data_folder(subject: str, table: LibraryTable) -> ArrowFolder:
    """The folder of the table's data files."""
    location = data_location(table)
    io = table.io
    assert isinstance(io, PyArrowFileIO)
    return files_below(subject, io, location)


def files_below(subject: str, io: PyArrowFileIO, location: str) -> ArrowFolder:
    """Files below a location, as the library reaches them."""
    scheme, host, path = io.parse_location(location, io.properties)
    return ArrowFolder(subject, io.fs_by_scheme(scheme, host), path, location)


def data_location(table: LibraryTable) -> str:
    """Location of the folder of the table's data files, as its properties have it."""
    return table.location_provider().data_path
