"""``epochal doctor``: all checks of an environment and its settings, in one list."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from epochal.errors import EpochalError
from epochal.service.catalog.checks import catalog_findings, node_findings
from epochal.service.catalog.database import Database
from epochal.service.catalog.engines import sqlite_file
from epochal.service.catalog.migration import is_current
from epochal.service.catalog.tokens import read_given_token
from epochal.service.domain.checks import Finding, Verdict, failed, ok, warning
from epochal.service.domain.settings import Settings
from epochal.service.runtime.isolation import local_store
from epochal.service.runtime.launchers.java import check_java
from epochal.service.runtime.store_claim import identity_finding, writable_finding
from epochal.snapshots.store import SnapshotStore

OLDEST_PYTHON = (3, 11)
_LITTLE_BYTES = 1 << 30


def examine(settings: Settings, environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Check without raising for findings. Raises ``OptionError`` for invalid settings. Changes nothing."""
    return [
        *_machine(environment),
        *_data_folder(settings.data.absolute()),
        *_given_token(settings.given_admin_token),
        *_catalog_and_store(settings),
    ]


def _machine(environment: Mapping[str, str]) -> Iterator[Finding]:
    shown = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] >= OLDEST_PYTHON:
        yield ok("python", f"Python {shown}.")
    else:
        wanting = ".".join(map(str, OLDEST_PYTHON))
        yield failed("python", f"Python {shown} is too old.", f"Install Epochal into Python {wanting} or later.")
    try:
        yield ok("java", f"Java {check_java(environment)}.")
    except EpochalError as error:
        said, _, remedy = error.message.partition(". ")
        yield failed("java", f"{said}.", remedy)
    try:
        yield ok("pyspark", f"PySpark {version('pyspark')}.")
    except PackageNotFoundError:
        yield failed("pyspark", "PySpark is not installed.", "Run pip install epochal in this environment again.")


def _data_folder(data: Path) -> Iterator[Finding]:
    folder = next(parent for parent in (data, *data.parents) if parent.exists())
    if not os.access(folder, os.W_OK | os.X_OK):
        remedy = "Choose another with --home, or let this user write it."
        yield failed("data directory", f"{folder} cannot be written by this user.", remedy)
    elif folder != data:
        yield ok("data directory", f"{data} does not exist yet; the first start creates it.")
    elif (mode := data.stat().st_mode) & 0o007:
        said = f"{data} is accessible to every user of this machine (mode {mode & 0o777:o})."
        yield warning("data directory", said, f"chmod o-rwx {data}; secrets in it have permissions of their own.")
    else:
        yield ok("data directory", f"{data} is writable, and closed to other users.")
    yield _space("data disk", folder)


def _given_token(path: Path | None) -> Iterator[Finding]:
    if path is None:
        return
    try:
        read_given_token(path)
    except EpochalError as error:
        yield failed("admin token", error.message, "Correct or unset EPOCHAL_ADMIN_TOKEN_FILE.")
    else:
        yield ok("admin token", f"{path} contains a token.")


def _space(check: str, folder: Path) -> Finding:
    usage = shutil.disk_usage(folder)
    shown = f"{usage.free / (1 << 30):.1f} GiB of {usage.total / (1 << 30):.1f} GiB are free at {folder}."
    if usage.free >= _LITTLE_BYTES:
        return ok(check, shown)
    remedy = "Free some space: without space, epochs are aborted and retried."
    return warning(check, shown, remedy)


def _catalog_and_store(settings: Settings) -> Iterator[Finding]:
    store = SnapshotStore(settings.store_url)
    file = sqlite_file(settings.database_url)
    if file is not None and not file.exists():
        yield ok("catalog", f"There is no catalog yet: the first start creates SQLite in {file}.")
        yield from _store(settings, store)
        yield identity_finding(None, store)
        return
    database = Database(settings.database_url)
    try:
        found = catalog_findings(database)
        yield from found
        yield from _store(settings, store)
        if all(finding.verdict is not Verdict.FAILED for finding in found):
            current = is_current(database)
            yield identity_finding(database if current else None, store)
            if current:
                yield from node_findings(database)
    finally:
        database.close()


def _store(settings: Settings, store: SnapshotStore) -> Iterator[Finding]:
    folder = local_store(settings)
    if folder is not None and not folder.exists():
        yield ok("store", f"{folder} does not exist yet; the start creates it.")
        return
    yield writable_finding(store)
    if folder is not None:
        yield _space("store disk", folder)
