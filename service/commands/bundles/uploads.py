"""Uploads: a bundle that arrives in parts, each at the place where the last one ended; also after a restart."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock

from pydantic import ValidationError

from epochal.errors import Conflict, InvalidInput, NotFound, StorageFull
from epochal.service.catalog.types import now
from epochal.service.commands.bundles import folders
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.settings import Settings
from epochal.service.runtime.artifact_files import keep
from epochal.snapshots.store import storage_errors
from epochal.wire.bundles import CreateImport, ImportAnswer

_ID = re.compile(r"[0-9a-f]{32}")
_PIECE = 4 << 20
_WRITTEN = ".written"


class BundleTooLarge(InvalidInput):
    """The bundle is larger than this control plane takes."""

    slug = "bundle-too-large"


class Written:
    """Paths in the store that an import has brought, or is just about to: also those of a try that was killed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.paths: list[str] = []
        with suppress(FileNotFoundError):
            self.paths = file.read_text().splitlines()

    def add(self, path: str) -> None:
        with storage_errors(f"the list of what {self._file.stem} has brought"), self._file.open("a") as file:
            file.write(path + "\n")
        self.paths.append(path)

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)
        self.paths = []


class Uploads:
    """``{id}.json`` says what is to come, ``{id}.part`` is what came: its size says where the next part goes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = Lock()

    def create(self, request: CreateImport, by: str) -> ImportAnswer:
        """One that the same caller has begun is gone on with."""
        limit = self._settings.limits.bundle_bytes
        if request.bytes > limit:
            raise BundleTooLarge(f"The bundle has {request.bytes} bytes; at most {limit} are taken here.")
        with self._lock:
            for known in self._all():
                if (known.sha256, known.bytes, known.created_by) == (request.sha256, request.bytes, by):
                    return known
            answer = ImportAnswer(
                id=new_id(),
                sha256=request.sha256,
                bytes=request.bytes,
                received=0,
                created_at=now(),
                created_by=by,
            )
            with storage_errors(f"the upload {answer.id}"):
                keep(self._about(answer.id), answer.model_dump_json().encode())
            return answer

    def get(self, id: str) -> ImportAnswer:
        """Raises ``NotFound``."""
        if _ID.fullmatch(id):
            with suppress(FileNotFoundError, ValidationError):
                about = ImportAnswer.model_validate_json(self._about(id).read_text())
                return about.model_copy(update={"received": self._received(id)})
        raise NotFound(f"There is no import {id!r}.")

    def all(self) -> list[ImportAnswer]:
        """Oldest first."""
        return sorted(self._all(), key=lambda upload: upload.id)

    def append(self, id: str, offset: int, data: bytes) -> ImportAnswer:
        """Raises ``Conflict`` unless ``offset`` is where the last part ended, and ``InvalidInput`` past the end."""
        with self._lock:
            upload = self.get(id)
            if offset != upload.received:
                raise Conflict(f"Import {id} has {upload.received} bytes; the next part goes there, not to {offset}.")
            if offset + len(data) > upload.bytes:
                raise InvalidInput(f"Import {id} was announced with {upload.bytes} bytes; this part goes beyond them.")
            try:
                with storage_errors(f"the upload {id}"), self._content(id).open("ab") as file:
                    file.write(data)
            except StorageFull:
                raise StorageFull(
                    f"There is no space left for the upload {id}. Free some, and go on with it."
                ) from None
            return upload.model_copy(update={"received": upload.received + len(data)})

    def whole(self, id: str) -> tuple[ImportAnswer, Path]:
        """The bundle, checked. Raises ``Conflict`` when parts are missing; what was damaged is thrown away."""
        upload = self.get(id)
        if upload.received != upload.bytes:
            raise Conflict(f"Import {id} has {upload.received} of {upload.bytes} bytes; upload the rest first.")
        path = self._content(id)
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
        if digest.hexdigest() != upload.sha256:
            path.unlink()
            raise InvalidInput(
                f"What arrived as import {id} does not have the announced sha256: it was damaged on its way. It is "
                "thrown away; upload it again."
            )
        return upload, path

    def content(self, id: str) -> Path:
        """Raises ``NotFound``."""
        self.get(id)
        return self._content(id)

    def written(self, id: str, operation: str) -> Written:
        """What the import of this upload by ``operation`` has written to the store."""
        return Written(self._content(id).with_suffix(f".{operation}{_WRITTEN}"))

    def remove(self, id: str) -> None:
        """Absent is done."""
        if _ID.fullmatch(id):
            self._content(id).unlink(missing_ok=True)
            for path in folders.uploads(self._settings).glob(f"{id}.*{_WRITTEN}"):
                path.unlink(missing_ok=True)
            self._about(id).unlink(missing_ok=True)

    def _all(self) -> Iterator[ImportAnswer]:
        for path in folders.uploads(self._settings).glob("*.json"):
            with suppress(NotFound):
                yield self.get(path.stem)

    def _received(self, id: str) -> int:
        with suppress(FileNotFoundError):
            return self._content(id).stat().st_size
        return 0

    def _about(self, id: str) -> Path:
        return folders.uploads(self._settings) / f"{id}.json"

    def _content(self, id: str) -> Path:
        return folders.upload_file(self._settings, id)
