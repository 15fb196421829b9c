"""Uploads: a bundle that arrives in parts, each beginning where the previous one ended, at any control plane.

The parts are in the store. The control plane that reads the bundle assembles it in a local folder, which may be lost.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from epochal.errors import Conflict, InvalidInput, NotFound, StorageFull
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.models import Upload
from epochal.service.catalog.projects import ProjectRepository
from epochal.service.catalog.store_files import StoreFiles
from epochal.service.catalog.types import database_now
from epochal.service.catalog.uploads import UploadRepository
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.settings import Settings
from epochal.service.runtime.disk_space import DiskSpace
from epochal.service.runtime.stored_files import StoredFiles
from epochal.snapshots import layout
from epochal.snapshots.storage_errors import storage_errors
from epochal.wire.bundles import CreateImport, UploadAnswer

KEPT = timedelta(days=7)
"""Retention time of an upload without progress."""

_ID = re.compile(r"[0-9a-f]{32}")
_PIECE = 4 << 20


class BundleTooLarge(InvalidInput):
    """The bundle exceeds the maximum size of this control plane."""

    slug = "bundle-too-large"


class Written:
    """Paths that an import writes to the store, recorded before the first is written, including those of earlier
    attempts at any control plane."""

    def __init__(self, database: Database, files: StoredFiles, operation: str) -> None:
        self._database = database
        self._files = files
        self._operation = operation
        lists = files.parts("import", operation)
        self.paths: list[str] = b"".join(lists.read(0, lists.bytes)).decode().splitlines()

    def add(self, paths: list[str]) -> None:
        """Record paths before they are written."""
        if not paths:
            return
        path = layout.list_of_import(self._operation)
        data = "".join(f"{each}\n" for each in paths).encode()
        self._files.write("import", self._operation, path, data)
        with self._database.writing() as session:
            StoreFiles(session).name(path, len(data), database_now(session) + KEPT)
        self.paths += paths

    def stays(self, session: Session) -> None:
        """Keep the paths: they will not be removed."""
        StoreFiles(session).give_up_all("import", self._operation)

    def forget(self) -> None:
        self._files.delete_all("import", self._operation)
        self.paths = []


class Uploads:
    def __init__(self, settings: Settings, database: Database, files: StoredFiles) -> None:
        self._settings = settings
        self._database = database
        self._files = files
        self._disk = DiskSpace(settings)

    def create(self, request: CreateImport, project: str, by: str) -> UploadAnswer:
        """Begin an upload, or resume the caller's upload of the same bundle in the project.

        Raises ``NotFound`` without such a project, ``BundleTooLarge``; ``StorageFull`` without space for all of it.
        """
        limit = self._settings.limits.bundle_bytes
        if request.bytes > limit:
            raise BundleTooLarge(f"The bundle has {request.bytes} bytes; the maximum is {limit}.")
        self._disk.check("the bundle", request.bytes)
        with self._database.writing() as session:
            row = UploadRepository(session, KEPT).create(request.sha256, request.bytes, project, by)
            ProjectRepository(session).hold(project)
            return _answer(row)

    def get(self, id: str, project: str | None = None) -> UploadAnswer:
        """Raises ``NotFound``, also for uploads of other projects if ``project`` is given."""
        with self._database.reading() as session:
            return _answer(UploadRepository(session, KEPT).get(id, project))

    def all(self, project: str) -> list[UploadAnswer]:
        """Listed oldest first. Raises ``NotFound`` without such a project."""
        with self._database.reading() as session:
            ProjectRepository(session).check_there(project)
            return [_answer(row) for row in UploadRepository(session, KEPT).all(project)]

    def append(self, id: str, project: str, offset: int, data: bytes) -> UploadAnswer:
        """Raises ``NotFound``, ``Conflict`` unless ``offset`` is the end of the previous part, and ``InvalidInput``
        beyond the end."""
        with self._database.reading() as session:
            row = UploadRepository(session, KEPT).get(id, project)
            _check_next(row, offset, len(data))
        if not data:
            return _answer(row)
        path = layout.part_of_upload(id, offset)
        try:
            self._files.write("upload", id, path, data, offset)
        except StorageFull:
            raise StorageFull(f"Not enough space for the upload {id}. Free some, and resume it.") from None
        try:
            with self._database.writing() as session:
                uploads = UploadRepository(session, KEPT)
                row = uploads.get(id, lock=True)
                _check_next(row, offset, len(data))
                uploads.append(row, path, len(data))
                return _answer(row)
        except (Conflict, NotFound):
            self._files.delete(path)  # the same part was sent concurrently, or the upload was deleted
            raise

    def whole(self, id: str, project: str | None = None) -> tuple[UploadAnswer, Path]:
        """Assemble and check the bundle on this machine. Raises ``Conflict`` if parts are missing; a damaged upload
        is deleted."""
        upload = self.get(id, project)
        if upload.received != upload.bytes:
            raise Conflict(f"Import {id} has {upload.received} of {upload.bytes} bytes; upload the rest first.")
        path = upload_file(self._settings, id)
        if not _has(path, upload):
            self._put_together(upload, path)
        if not _has(path, upload):
            path.unlink(missing_ok=True)
            with self._database.writing() as session:
                uploads = UploadRepository(session, KEPT)
                uploads.begin_again(uploads.get(id, lock=True))
            raise InvalidInput(
                f"The contents of import {id} do not have the announced sha256: they were damaged in transit. The "
                "upload is deleted; upload the bundle again."
            )
        return upload, path

    def written(self, operation: str) -> Written:
        """Paths that an import has written to the store."""
        return Written(self._database, self._files, operation)

    def give_up(self, session: Session, id: str) -> None:
        """Remove the upload from the catalog; :meth:`remove` then deletes its files."""
        UploadRepository(session, KEPT).remove(id)

    def remove(self, id: str) -> None:
        """Remove the upload; no effect if it does not exist."""
        if _ID.fullmatch(id):
            with self._database.writing() as session:
                UploadRepository(session, KEPT).remove(id)
            self._files.delete_all("upload", id)
            upload_file(self._settings, id).unlink(missing_ok=True)

    def expire(self, is_used: Callable[[str], bool]) -> None:
        """Remove uploads without progress."""
        with self._database.reading() as session:
            expired = UploadRepository(session, KEPT).expired()
        for id in expired:
            if not is_used(id):
                self.remove(id)

    def _put_together(self, upload: UploadAnswer, path: Path) -> None:
        draft = path.with_name(f".{path.name}.{new_id()}")
        parts = self._files.parts("upload", upload.id)
        try:
            with storage_errors(f"the upload {upload.id}"), draft.open("wb") as file:
                for piece in parts.read(0, parts.bytes):
                    file.write(piece)
            os.replace(draft, path)
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()


def _check_next(row: Upload, offset: int, size: int) -> None:
    if offset != row.received:
        raise Conflict(f"Import {row.id} has {row.received} bytes; the next part begins there, not at {offset}.")
    if offset + size > row.bytes:
        raise InvalidInput(f"Import {row.id} was announced with {row.bytes} bytes; this part exceeds them.")


def _has(path: Path, upload: UploadAnswer) -> bool:
    """Return whether the file is the complete bundle."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except FileNotFoundError:
        return False
    return digest.hexdigest() == upload.sha256


def _answer(row: Upload) -> UploadAnswer:
    return UploadAnswer(
        id=row.id,
        sha256=row.sha256,
        bytes=row.bytes,
        received=row.received,
        created_at=row.created_at,
        created_by=row.created_by,
    )


ENDING = ".epochal"


def uploads_folder(settings: Settings) -> Path:
    return _folder(settings.data.absolute() / "imports")


def upload_file(settings: Settings, upload: str) -> Path:
    """The assembled upload."""
    return uploads_folder(settings) / f"{upload}{ENDING}"


def unpacked_folder(bundle: Path) -> Path:
    """Folder of an upload's members during the import."""
    return bundle.with_suffix(".unpacked")


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path
