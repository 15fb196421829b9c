"""A catalog of 100,000 epochs: start of its control plane, and times of pages of lists and of the lineage.

Measured with a row for each epoch, as after 100,000 retained epochs, and again after folding. The rows are written
directly to the catalog (SQLite); the control plane is a separate process, queried over HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from sqlalchemy import insert, update

from benchmarks.result import Result, at_most, number
from epochal.service.catalog.database import Database
from epochal.service.catalog.folding import FoldingRepository
from epochal.service.catalog.installations import CursorKey
from epochal.service.catalog.models import Application, Branch, Epoch, Execution
from epochal.service.catalog.operation_completion import execution_over
from epochal.service.catalog.standalone import standalone_catalog
from epochal.service.domain.pages import CursorSeal, PageRequest
from epochal.service.domain.setting_sections import Kept
from epochal.testing.servers.control_plane import ControlPlane, control_plane
from epochal.wire.projects import DEFAULT_PROJECT

EPOCHS, ABORTED_EVERY, VERSIONS = 100_000, 500, 5
TIMES = 7
NAME, ARTIFACT = "flights", "a" * 64
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
PAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "list of epochs, newest": ("epochs", {"limit": 50}),
    "list of epochs, in the middle": ("epochs", {"limit": 50, "cursor": EPOCHS // 2}),
    "list of epochs, aborted ones": ("epochs", {"limit": 50, "state": "aborted"}),
    "list of snapshots, largest page": ("snapshots", {"limit": 500}),
    "lineage, folded": ("lineage", {"limit": 100, "fold": True}),
    "lineage, each epoch": ("lineage", {"limit": 100}),
}


def run(folder: Path) -> list[Result]:
    with control_plane(folder) as plane:
        plane.process.stop()
        start = time.monotonic()
        plane.restart()
        empty = number("start, empty", time.monotonic() - start, "s", "baseline of the other starts")
        plane.process.stop()
        url = _catalog(plane)
        write_history(url, EPOCHS)
        results = [empty, *_measured(plane, "a row each")]
        plane.process.stop()
        seconds = _fold(url)
        results.append(number("folding", seconds, "s", f"{EPOCHS:,} epochs into ranges"))
        results += _measured(plane, "folded")
    return results


def _measured(plane: ControlPlane, how: str) -> list[Result]:
    start = time.monotonic()
    plane.restart()
    results = [
        at_most(f"start, {how}", time.monotonic() - start, 3, "s", f"{EPOCHS:,} epochs, from the start of the command")
    ]
    with client_of(plane) as client:
        for name, (path, query) in PAGES.items():
            milliseconds = median(_milliseconds(client, path, _encoded(plane, path, query)) for _ in range(TIMES))
            results.append(at_most(f"{name}, {how}", milliseconds, 100, "ms", digits=1))
    return results


def _milliseconds(client: httpx.Client, path: str, query: dict[str, Any]) -> float:
    start = time.monotonic()
    client.get(f"/v1/applications/{NAME}/{path}", params=query).raise_for_status()
    return (time.monotonic() - start) * 1e3


def _encoded(plane: ControlPlane, path: str, query: dict[str, Any]) -> dict[str, Any]:
    if "cursor" not in query:
        return query
    database = Database(_catalog(plane))
    seal = CursorSeal(CursorKey(database).get(), (DEFAULT_PROJECT, f"/v1/applications/{NAME}/{path}"))
    database.close()
    return query | {"cursor": PageRequest(query["limit"], None, seal).following(query["cursor"])}


def _catalog(plane: ControlPlane) -> str:
    return f"sqlite:///{plane.home / 'catalog.sqlite'}"


@contextmanager
def client_of(plane: ControlPlane) -> Iterator[httpx.Client]:
    token = (plane.home / "admin.token").read_text().strip()
    with httpx.Client(base_url=plane.url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
        yield client


def write_history(url: str, epochs: int) -> None:
    """Write the history of a stopped application directly to the catalog."""
    catalog = standalone_catalog(url, NAME, ARTIFACT)
    branch = catalog.begin_attempt().branch
    database = Database(url, keeps_events=False)
    with database.writing() as session:
        execution = session.get_one(Execution, catalog.execution)
        rows = []
        parent = None
        for epoch in range(1, epochs + 1):
            committed = epoch % ABORTED_EVERY != 0
            at = BEGAN + timedelta(seconds=epoch)
            rows.append(
                {
                    "branch": branch,
                    "epoch": epoch,
                    "execution": execution.id,
                    "attempt": 1,
                    "state": "committed" if committed else "aborted",
                    "parent_branch": None if parent is None else branch,
                    "parent_epoch": parent,
                    "manifest_path": f"{branch}/manifests/{epoch}-1.json" if committed else None,
                    "manifest_sha256": "a" * 64 if committed else None,
                    "rows_in": 1000,
                    "rows_out": 10,
                    "state_rows": 10,
                    "state_bytes": 1000,
                    "version": 1,
                    "changes": [{"kind": "parameters", "detail": {}}] if epoch % (epochs // VERSIONS) == 1 else None,
                    "opened_for": ["input"],
                    "started_at": at,
                    "prepared_at": at if committed else None,
                    "committed_at": at if committed else None,
                    "collected_at": at if committed and epoch < epochs - 1000 else None,
                }
            )
            parent = epoch if committed else parent
        for start in range(0, epochs, 10_000):
            session.execute(insert(Epoch), rows[start : start + 10_000])
        head = {"head_branch": branch, "head_epoch": parent}
        aborted = epochs // ABORTED_EVERY
        counted = {"committed_epochs": epochs - aborted, "aborted_epochs": aborted}
        session.execute(update(Branch).where(Branch.id == branch).values(**head, **counted))
        session.get_one(Application, execution.application).updated_at = BEGAN
        execution_over(session, execution, "stopped", None)
    database.close()


def _fold(url: str) -> float:
    start = time.monotonic()
    database = Database(url)
    with database.reading() as session:
        repository = FoldingRepository(session)
        stretches = [
            part
            for branch in repository.branches()
            for stretch in repository.foldable(branch, Kept().epochs, datetime.now(UTC), lambda path: False)
            for part in stretch.parts(2_000)
        ]
    for stretch in stretches:
        with database.writing() as session:
            FoldingRepository(session).fold(stretch)
    database.close()
    return time.monotonic() - start
