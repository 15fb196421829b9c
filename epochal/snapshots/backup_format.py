"""Layout of a folder or bucket of backups. All paths are relative to it.

epochal-backups.json                    the installation that the backups belong to
files/{path in the store}               shared by all backups: files of a store never change
backups/{id}/tables/{table}.jsonl.gz    the catalog, one row per line
backups/{id}/files.jsonl.gz             files that this backup needs: path, bytes, sha256 per line
backups/{id}/index.json                 written last; without it the backup is incomplete
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from epochal.errors import Conflict, FileCorrupt, FileMissing, InvalidInput, NewerFormat, NotFound
from epochal.snapshots.storage_errors import storage_errors
from epochal.snapshots.store import SnapshotStore

FORMAT = 1
FILES = "files"
BACKUPS = "backups"
LABEL = "epochal-backups.json"
_LEVEL = 1
"""Compression level. Catalogs are small compared with stores, so that speed matters more than size."""

ColumnKind = Literal["plain", "json", "time", "bytes"]
"""Encoding of a column's values in JSON: unchanged (also for JSON columns), ISO 8601, base 64."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Part(_Model):
    """A file that belongs to one backup."""

    path: str
    lines: int
    bytes: int
    sha256: str


class TablePart(_Model):
    name: str
    columns: dict[str, ColumnKind]
    part: Part


class BackedUpApplication(_Model):
    """Position of an application, for display. ``epoch``: the latest decided epoch."""

    name: str
    branch: str
    epoch: int | None


class Index(_Model):
    """Index of a backup. ``created_at``: time of the catalog's snapshot. ``problems``: files that could not be copied,
    for display."""

    format: int = FORMAT
    id: str
    installation: str
    incarnation: str
    revision: str
    version: str
    catalog: str
    store: str
    created_at: datetime
    finished_at: datetime
    tables: tuple[TablePart, ...]
    files: Part
    stored_files: int
    stored_bytes: int
    applications: tuple[BackedUpApplication, ...]
    problems: tuple[str, ...] = ()


class BackupFile(NamedTuple):
    """A file in ``files/``. ``path``: as in the store."""

    path: str
    bytes: int
    sha256: str


class Backups:
    """The backups in one folder or bucket. Raises ``SnapshotError``, ``StorageFull`` as a store does."""

    def __init__(self, url: str) -> None:
        self.place = SnapshotStore(url)
        self.files = SnapshotStore(self.place.location(FILES))

    def take(self, installation: str) -> None:
        """Label a new location. Raises ``Conflict`` if it has the backups of another installation."""
        try:
            self.check_of(installation)
        except FileMissing:
            if self.place.is_near:
                # Backups contain hashes of tokens and parameters, so that only the owner may read them.
                with storage_errors(self.place.url):
                    Path(self.place.url).mkdir(mode=0o700, parents=True, exist_ok=True)
            self.place.write(LABEL, json.dumps({"format": FORMAT, "installation": installation}).encode())

    def check_of(self, installation: str) -> None:
        """Raises ``Conflict`` for the backups of another installation, ``FileMissing`` for an unlabelled location."""
        label = self.place.read(LABEL)
        try:
            found = json.loads(label).get("installation")
        except ValueError:
            found = None
        if found != installation:
            raise Conflict(
                f"{self.place.url} holds the backups of another installation ({found or 'unknown'}). Use a separate "
                "folder for this installation."
            )

    def ids(self) -> list[str]:
        """Ids of complete backups, oldest first."""
        paths = self.place.list(BACKUPS)
        return sorted(path.split("/")[1] for path in paths if path.endswith("/index.json") and path.count("/") == 2)

    def index(self, id: str | None = None) -> Index:
        """Index of the newest backup, or of ``id``. Raises ``NotFound``, ``NewerFormat``, ``FileCorrupt``."""
        found = self.ids()
        if not found:
            raise NotFound(f"{self.place.url} holds no complete backup. Create one with `epochal backup create`.")
        if id is not None and id not in found:
            raise NotFound(f"{self.place.url} holds no complete backup {id!r}; the newest are {', '.join(found[-5:])}.")
        path = _own(id or found[-1], "index.json")
        data = self.place.read(path)
        if (format := _format_of(data)) is not None and format > FORMAT:
            raise NewerFormat(
                f"{self.place.location(path)} has format {format}; this version of Epochal reads {FORMAT}. Use the "
                "version that wrote it, or a later one."
            )
        try:
            return Index.model_validate_json(data)
        except ValidationError as error:
            raise FileCorrupt(f"{self.place.location(path)} cannot be read: {error.errors()[0]['msg']}.") from None

    def write_index(self, index: Index) -> None:
        """Write the index, which completes the backup."""
        self.place.write(_own(index.id, "index.json"), index.model_dump_json(indent=1).encode())

    def write_part(self, id: str, name: str, lines: Iterable[Any]) -> Part:
        """Write JSON values, one per line."""
        buffer, count = io.BytesIO(), 0
        with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=_LEVEL, mtime=0) as stream:
            for line in lines:
                stream.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
                count += 1
        data = buffer.getbuffer()
        path = _own(id, f"{name}.jsonl.gz")
        self.place.write(path, data)
        return Part(path=path, lines=count, bytes=data.nbytes, sha256=hashlib.sha256(data).hexdigest())

    def read_part(self, part: Part) -> Iterator[Any]:
        """Raises ``FileMissing``, ``FileCorrupt``."""
        data = self.place.read(part.path, "the backup")
        if len(data) != part.bytes or hashlib.sha256(data).hexdigest() != part.sha256:
            raise FileCorrupt(f"{self.place.location(part.path)} does not match the backup's index: it was changed.")
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            for line in stream:
                yield json.loads(line)

    def listed(self, index: Index) -> list[BackupFile]:
        """Files in ``files/`` that the backup needs. Raises ``FileMissing``, ``FileCorrupt``."""
        return [BackupFile(*line) for line in self.read_part(index.files)]

    def remove(self, id: str) -> None:
        """Remove a backup's own files, its index first; files in ``files/`` stay."""
        paths = sorted(self.place.list(f"{BACKUPS}/{id}"), key=lambda path: not path.endswith("/index.json"))
        for path in paths:
            self.place.delete(path)
        for folder in sorted({path.rpartition("/")[0] for path in paths}, key=len, reverse=True):
            self.place.remove_empty_folder(folder)

    def discard(self, id: str) -> None:
        """Remove the files of an incomplete backup, and files that no backup needs any more."""
        self.remove(id)
        needed = {file.path for other in self.ids() for file in self.listed(self.index(other))}
        for path in self.files.list(""):
            if path not in needed:
                self.files.delete(path)


def check_apart(store: str, place: str) -> None:
    """Raises ``InvalidInput`` if the backup location contains the store, or the store contains it."""
    inner, outer = f"{place.rstrip('/')}/", f"{store.rstrip('/')}/"
    if inner.startswith(outer) or outer.startswith(inner):
        raise InvalidInput(
            f"The backup location {place} and the store {store} overlap. Use another location for backups."
        )


def problems_of(lines: Sequence[str], most: int = 20) -> tuple[str, ...]:
    """The first ``most`` lines, and the number of further ones."""
    more = len(lines) - most
    return tuple(lines[:most]) + ((f".. and {more} more",) if more > 0 else ())


def _own(id: str, name: str) -> str:
    return f"{BACKUPS}/{id}/{name}"


def _format_of(data: bytes) -> int | None:
    try:
        found = json.loads(data).get("format")
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, int) else None
