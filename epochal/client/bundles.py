"""Bundles: exports, uploads, imports, and copies into another project."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from epochal.client.exchanges import path
from epochal.client.models import Application, ImportPlan, Operation, Upload
from epochal.client.operations import Operations
from epochal.client.transport import Transport
from epochal.errors import CatalogUnavailable, EnvironmentProblem, EpochalError, FileCorrupt
from epochal.wire.bodies import read
from epochal.wire.versions import accepted

PART_BYTES = 8 << 20
TRIES = 5
"""Maximum number of consecutive attempts to resume a download without receiving a byte."""

Progress = Callable[[int, int], None]
"""Callback with the transferred and the total number of bytes."""


class Exports:
    """``client.application(name).exports``"""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._application = application

    def create(
        self,
        *,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        since: int | None = None,
        message: str | None = None,
    ) -> Operation:
        """Build a bundle of a snapshot (default: the latest). Result: ``{filename, bytes, sha256, expires_at, ..}``."""
        body = {"epoch": epoch, "savepoint": savepoint, "tag": tag, "since": since, "message": message}
        return read(Operation, self._transport.post(path("applications", self._application, "export"), body))

    def fetch(self, operation: Operation, file: Path, on_progress: Progress | None = None) -> None:
        """Download a finished export to ``file``, resuming ``file.part`` if it exists.

        Raises ``SnapshotExpired`` if the export was deleted, ``FileCorrupt`` if the checksum differs.
        """
        result = operation.result or {}
        size, sha256 = int(result["bytes"]), str(result["sha256"])
        partial = file.with_name(f"{file.name}.part")
        target = path("applications", self._application, "exports", operation.id)
        tries = TRIES
        while (there := partial.stat().st_size if partial.exists() else 0) < size:
            try:
                self._fetch_from(target, sha256, partial, there, size, on_progress)
            except CatalogUnavailable:
                moved = (partial.stat().st_size if partial.exists() else 0) > there
                tries = TRIES if moved else tries - 1
                if tries == 0:
                    raise
        if sha256_of(partial) != sha256:
            partial.unlink()
            raise FileCorrupt(
                f"The checksum of {file} differs from that of the export. The file has been deleted; fetch it again."
            )
        partial.replace(file)

    def _fetch_from(
        self, target: str, sha256: str, partial: Path, there: int, size: int, on_progress: Progress | None
    ) -> None:
        headers = {"Range": f"bytes={there}-", "If-Range": f'"{sha256}"'} if there else {}
        with self._transport.stream(target, headers=headers) as response, partial.open("ab") as file:
            if response.status_code != httpx.codes.PARTIAL_CONTENT:
                file.truncate(0)
                there = 0
            for piece in response.iter_bytes(1 << 20):
                file.write(piece)
                there += len(piece)
                if on_progress is not None:
                    on_progress(there, size)


class Imports:
    """``client.imports``"""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def upload(self, file: Path, on_progress: Progress | None = None) -> Upload:
        """Upload a bundle, resuming an interrupted upload. Raises ``EnvironmentProblem``, ``Conflict``."""
        try:
            size, sha256 = file.stat().st_size, sha256_of(file)
        except OSError as error:
            raise EnvironmentProblem(f"The bundle {file} cannot be read: {error.strerror}; check the path.") from error
        upload = read(Upload, self._transport.post("/v1/imports", {"sha256": sha256, "bytes": size}))
        with file.open("rb") as source:
            while upload.received < size:
                source.seek(upload.received)
                upload = self._send(upload, source.read(PART_BYTES))
                if on_progress is not None:
                    on_progress(upload.received, size)
        return upload

    def plan(self, upload: str, **options: Any) -> ImportPlan:
        """Plan an import by :meth:`make` with the same options, including missing mappings."""
        return read(ImportPlan, self._transport.query(self._target(upload), {**_options(**options), "dry_run": True}))

    def make(self, upload: str, **options: Any) -> Operation:
        """Create an application from an uploaded bundle. Options: ``name``, ``parameters`` (merged over the bundle's),
        ``map`` (old to new parameter values), ``keep`` (sinks that keep their targets), ``sources`` (time by source
        from which it continues at other brokers), ``configuration``, ``shadow``, ``start``, ``message``;
        ``accept_changed`` and ``accept_partial`` as in an upgrade.

        Raises ``InvalidInput`` (``mapping-needed``, ``invalid-bundle``), ``NameTaken``, ``Conflict``.
        """
        return read(Operation, self._transport.post(self._target(upload), _options(**options)))

    def list(self) -> list[Upload]:
        """List uploads that have not been imported yet."""
        return self._transport.pages("/v1/imports", Upload, None)

    def delete(self, upload: str) -> None:
        self._transport.delete(path("imports", upload))

    def _send(self, upload: Upload, data: bytes) -> Upload:
        target = path("imports", upload.id, "content")
        return read(Upload, self._transport.put(target, {"offset": upload.received}, data))

    @staticmethod
    def _target(upload: str) -> str:
        return path("imports", upload, "application")


def sha256_of(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as source:
        while piece := source.read(4 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _options(
    *,
    name: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    map: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    sources: Mapping[str, datetime] | None = None,
    configuration: Mapping[str, Any] | None = None,
    shadow: bool = False,
    start: bool = False,
    message: str | None = None,
    accept_changed: Sequence[str] = (),
    accept_partial: Sequence[str] = (),
) -> dict[str, Any]:
    return {
        "name": name,
        "parameters": dict(parameters or {}),
        "map": dict(map or {}),
        "keep": list(keep),
        "sources": {source: {"at": moment.astimezone().isoformat()} for source, moment in (sources or {}).items()},
        "configuration": dict(configuration or {}),
        "shadow": shadow,
        "start": start,
        "message": message,
        "acceptance": accepted(accept_changed, accept_partial),
    }


def copied_into(
    source: Transport,
    application: str,
    target: Transport,
    name: str,
    *,
    epoch: int | None,
    savepoint: str | None,
    tag: str | None,
    parameters: Mapping[str, Any] | None,
    configuration: Mapping[str, Any] | None,
    shadow: bool,
    start: bool,
    message: str | None,
    accept_changed: Sequence[str] = (),
    accept_partial: Sequence[str] = (),
) -> Application:
    """Copy an application to another project as ``name``, and wait until it exists. ``source`` and ``target`` are
    clients for one project each. The bundle is stored temporarily on this machine. Raises the errors of an export and
    an import, and ``EnvironmentProblem`` if the temporary folder cannot hold the bundle."""
    exports, imports = Exports(source, application), Imports(target)
    export = Operations(source).wait(exports.create(epoch=epoch, savepoint=savepoint, tag=tag, message=message))
    try:
        with tempfile.TemporaryDirectory(prefix="epochal-fork-") as folder:
            bundle = Path(folder) / "bundle"
            exports.fetch(export, bundle)
            upload = imports.upload(bundle)
    except OSError as error:
        raise EnvironmentProblem(
            f"The bundle of {application} cannot be stored temporarily in {tempfile.gettempdir()}: {error.strerror}. "
            "Free space there, or set TMPDIR to a folder with enough space."
        ) from error
    try:
        operation = imports.make(
            upload.id,
            name=name,
            parameters=parameters,
            configuration=configuration,
            shadow=shadow,
            start=start,
            message=message,
            accept_changed=accept_changed,
            accept_partial=accept_partial,
        )
    except EpochalError:
        with suppress(EpochalError):
            imports.delete(upload.id)  # the upload is not needed any more
        raise
    Operations(target).wait(operation)
    return read(Application, target.get(path("applications", name)))
