"""Bundles that an earlier version of Epochal has in a data folder: moved into the store, once.

=================================  ======================================================================
in the data folder                 what it was
=================================  ======================================================================
``imports/{id}.json``              an upload, as it was announced
``imports/{id}.part``              what has come of it
``imports/{id}.{operation}.written``  what an import has brought into the store, or was about to, a line each
``exports/{operation}.epochal``    a bundle that can be fetched
=================================  ======================================================================

The control plane that has them moves them when it starts. Ended anywhere, the next start goes on; what it had written
expires.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import ValidationError

from epochal.errors import EpochalError, NotFound
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.models import Operation
from epochal.service.catalog.operations import OperationRepository
from epochal.service.catalog.store_files import Kind
from epochal.service.catalog.types import database_now
from epochal.service.catalog.uploads import UploadRepository
from epochal.service.commands.bundles.uploads import KEPT
from epochal.service.domain.settings import Settings
from epochal.service.runtime.stored_files import PartedFile, StoredFiles
from epochal.snapshots import layout
from epochal.wire.bundles import ExportResult, ImportAnswer

log = logging.getLogger("epochal.bundles")

_PIECE = 4 << 20
_WRITTEN, _PART, _BUNDLE = ".written", ".part", ".epochal"


def adopt_bundles(settings: Settings, database: Database, files: StoredFiles) -> None:
    """What cannot be moved is said in the log, and stays where it is."""
    move = _Move(database, files)
    imports, exports = settings.data.absolute() / "imports", settings.data.absolute() / "exports"
    try:
        for path in sorted(imports.glob("*.json")):
            move.upload(path)
        for path in sorted(imports.glob(f"*{_WRITTEN}")):
            move.written(path)
        for path in sorted(exports.glob(f"*{_BUNDLE}")):
            move.export(path)
    except OSError as error:
        log.error("bundles of an earlier version cannot be read, and stay in %s: %s", settings.data, error)
    except EpochalError as error:
        log.error("bundles of an earlier version cannot be moved into the store, and stay where they are: %s", error)
        return  # The store or the catalog does not answer: the next start goes on.
    for path in exports.glob(f"*{_BUNDLE}{_PART}"):
        path.unlink(missing_ok=True)  # of an export that was not finished, and is begun again
    with suppress(OSError):
        exports.rmdir()


class _Move:
    def __init__(self, database: Database, files: StoredFiles) -> None:
        self._database = database
        self._files = files

    def upload(self, about: Path) -> None:
        content = about.with_suffix(_PART)
        try:
            announced = ImportAnswer.model_validate_json(about.read_text())
        except ValidationError:
            log.error("%s does not say what the upload is, and stays there; upload the bundle again", about)
            return
        if not self._is_known(announced.id):
            parts = self._copied(content, "upload", announced.id) if content.exists() else None
            with self._database.writing() as session:
                UploadRepository(session, KEPT).bring_in(announced, 0 if parts is None else parts.size)
                if parts is not None:
                    parts.name(session, None)
            log.info("upload %s was moved into the store: %s", announced.id, about.parent)
        content.unlink(missing_ok=True)
        about.unlink()

    def written(self, listed: Path) -> None:
        operation = listed.name.removesuffix(_WRITTEN).rpartition(".")[2]
        if self._runs(operation) and not self._files.parts("import", operation).bytes:
            parts = self._copied(listed, "import", operation)
            with self._database.writing() as session:
                parts.name(session, KEPT)
        listed.unlink()

    def export(self, bundle: Path) -> None:
        operation = bundle.name.removesuffix(_BUNDLE)
        result = self._result(operation)
        if result is not None and not self._files.parts("export", operation).bytes:
            kept = datetime.fromisoformat(result.expires_at) - self._now()
            if kept > timedelta(0):
                self._move_export(bundle, operation, result, kept)
        bundle.unlink()

    def _move_export(self, bundle: Path, operation: str, result: ExportResult, kept: timedelta) -> None:
        parts = self._copied(bundle, "export", operation)
        if (parts.size, parts.sha256) != (result.bytes, result.sha256):
            log.error("%s is not what was exported any more; export the snapshot again", bundle)
            return
        with self._database.writing() as session:
            parts.name(session, kept)
        log.info("the bundle of export %s was moved into the store", operation)

    def _copied(self, file: Path, kind: Kind, owner: str) -> PartedFile:
        """To be named; what an earlier try has left is deleted."""
        self._files.delete_all(kind, owner)
        target = PartedFile(self._files, kind, owner, lambda at: _path(kind, owner, at))
        with file.open("rb") as source:
            while piece := source.read(_PIECE):
                target.write(piece)
        target.finish()
        return target

    def _is_known(self, upload: str) -> bool:
        with self._database.reading() as session:
            return UploadRepository(session, KEPT).find(upload) is not None

    def _runs(self, operation: str) -> bool:
        row = self._operation(operation)
        return row is not None and row.state == "running"

    def _result(self, operation: str) -> ExportResult | None:
        row = self._operation(operation)
        if row is None or row.kind != "export" or row.state != "succeeded":
            return None
        return ExportResult.model_validate(row.result)

    def _operation(self, id: str) -> Operation | None:
        with self._database.reading() as session:
            return _found(session, id)

    def _now(self) -> datetime:
        with self._database.reading() as session:
            return database_now(session).replace(tzinfo=UTC)


def _found(session: Session, id: str) -> Operation | None:
    try:
        return OperationRepository(session).get(id, None)[0]
    except NotFound:
        return None


def _path(kind: Kind, owner: str, position: int) -> str:
    if kind == "upload":
        return layout.part_of_upload(owner, position)
    return layout.list_of_import(owner) if kind == "import" else layout.part_of_export(owner, position)
