"""Frequent reads of the catalog cost as much after 20,000 epochs as after 200."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, insert, update

from epochal.contracts.catalog import DriverStatus, EpochCounts, ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.service.catalog.database import Database
from epochal.service.catalog.ledger import ExecutionLedger
from epochal.service.catalog.models import Attempt, Branch, Epoch, Execution
from epochal.service.catalog.sql_catalog import SqlCatalog
from epochal.service.catalog.standalone import standalone_catalog
from epochal.service.domain.pages import PageRequest
from epochal.service.domain.settings import Settings
from epochal.service.queries.lineage.service import LineageOptions, LineageService
from epochal.service.queries.snapshots import SnapshotDirectory
from epochal.service.runtime.metrics import Metrics
from epochal.snapshots.store import SnapshotStore
from epochal.wire.lineage import LineageAnswer
from tests.service.cursors import SEAL

FEW, MANY = 200, 20_000
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


class History:
    """The catalog of an application with ``epochs`` epochs, and a tenth as many executions and attempts."""

    def __init__(self, folder: Path, epochs: int) -> None:
        self.settings = Settings(data=folder)
        catalog = standalone_catalog(self.settings.database_url, "flights", "a" * 64)
        self.branch = catalog.begin_attempt().branch
        self.database = Database(self.settings.database_url)
        self.ledger = ExecutionLedger(self.database)
        self._insert(catalog, epochs)
        self.driver = catalog
        self.last = epochs

    def _insert(self, catalog: SqlCatalog, epochs: int) -> None:
        with self.database.writing() as session:
            running = session.get_one(Execution, catalog.execution)
            common = {
                "application": running.application,
                "version": 1,
                "branch": self.branch,
                "state": "stopped",
                "available_now": False,
                "drain": True,
            }
            ended = [
                {"id": f"{number:032}", **common, "attempt": 0, "started_at": MOMENT, "ended_at": MOMENT}
                for number in range(epochs // 10)
            ]
            lost = [
                {"execution": running.id, "number": number, "state": "lost", "started_at": MOMENT, "ended_at": MOMENT}
                for number in range(10, 10 + epochs // 10)
            ]
            done = [
                {
                    "branch": self.branch,
                    "epoch": number,
                    "execution": running.id,
                    "attempt": 1,
                    "state": "committed" if number % 10 else "aborted",
                    "parent_branch": self.branch if number > 1 else None,
                    "parent_epoch": number - 1 if number > 1 else None,
                    "manifest_path": f"{number}.json",
                    "manifest_sha256": "a" * 64,
                    "started_at": MOMENT,
                    "prepared_at": MOMENT + timedelta(seconds=number) if number % 10 else None,
                    "committed_at": MOMENT + timedelta(seconds=number),
                }
                for number in range(1, epochs + 1)
            ]
            for model, rows in ((Execution, ended), (Attempt, lost), (Epoch, done)):
                session.execute(insert(model), rows)
            counted = {"committed_epochs": epochs - epochs // 10, "aborted_epochs": epochs // 10}
            head = {"head_branch": self.branch, "head_epoch": epochs}
            session.execute(update(Branch).where(Branch.id == self.branch).values(**counted, **head))

    @contextmanager
    def watched(self) -> Iterator[Work]:
        work = Work()

        def connected(connection: Any, *_: Any) -> None:
            connection.set_progress_handler(work.step, 1)

        def executed(_connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            if statement.startswith(("SELECT", "UPDATE")):
                work.statements.append((statement, parameters))

        self.database.engine.dispose()  # so that the connections are new
        event.listen(self.database.engine, "connect", connected)
        event.listen(self.database.engine, "before_cursor_execute", executed)
        yield work
        event.remove(self.database.engine, "connect", connected)
        event.remove(self.database.engine, "before_cursor_execute", executed)

    def plans(self, statements: Sequence[tuple[str, Any]]) -> list[str]:
        self.database.engine.dispose()
        with self.database.engine.connect() as connection:
            explained = [
                connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values) for text, values in statements
            ]
            return [row[3] for plan in explained for row in plan]


class Work:
    """Counts the steps of SQLite's virtual machine (several per row), and records statements."""

    def __init__(self) -> None:
        self.steps = 0
        self.statements: list[tuple[str, Any]] = []

    def step(self) -> int:
        self.steps += 1
        return 0


def metrics(history: History) -> None:
    text = Metrics(history.database).render().decode()
    assert f'epochal_epochs{{state="committed"}} {history.last * 0.9}' in text
    assert 'epochal_applications{state="starting"} 1.0' in text


def supervision(history: History) -> None:
    (found,) = history.ledger.supervised().executions
    assert found.attempts[-1].number == 9 + history.last // 10


def heads(history: History) -> None:
    (head,) = SnapshotDirectory(history.database).heads()
    assert head.committed is not None and head.committed.epoch == history.last - 1


def driver(history: History) -> None:
    """The calls of one epoch."""
    catalog = SqlCatalog(history.database, history.driver.execution, 1)
    parent, number = EpochKey(history.branch, history.last - 1), history.last + 1
    manifest = ManifestReference(branch=history.branch, epoch=number, path=f"{history.branch}/m.json", sha256="b" * 64)
    with history.database.writing() as session:
        session.get_one(Branch, history.branch).head_epoch = parent.epoch
    catalog.begin_attempt()
    catalog.heartbeat(DriverStatus(phase="running"))
    catalog.open_epoch(number, parent)
    catalog.prepare_epoch(number, parent, manifest, EpochCounts())
    catalog.commit_epoch(number)


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> tuple[History, History]:
    folder = tmp_path_factory.mktemp("histories")
    return History(folder / "few", FEW), History(folder / "many", MANY)


@pytest.mark.parametrize("read_catalog", [metrics, supervision, heads, driver])
def test_the_work_of_a_read_does_not_grow_with_history(
    histories: tuple[History, History], read_catalog: Callable[[History], None]
) -> None:
    steps = []
    for history in histories:
        with history.watched() as work:
            read_catalog(history)
        steps.append(work.steps)
        scans = [plan for plan in history.plans(work.statements) if plan.startswith("SCAN")]
        assert not [plan for plan in scans if any(table in plan for table in ("epochs", "executions", "attempts"))]

    few, many = steps
    assert few > 0 and many < few * 1.1


def test_a_repeated_lineage_reads_new_epochs_only(tmp_path: Path) -> None:
    history = History(tmp_path, FEW)
    store = SnapshotStore(str(tmp_path / "store"))
    service = LineageService(history.database, store)

    def read_lineage(service: LineageService) -> LineageAnswer:
        return service.read("flights", PageRequest(100, None, SEAL), LineageOptions(fold=True, slices=False))

    def summed(service: LineageService) -> tuple[LineageAnswer, int]:
        with history.watched() as work:
            answer = read_lineage(service)
        return answer, work.steps

    before, first = summed(service)
    assert max(node.epochs for node in before.nodes) > FEW / 2
    again, second = summed(service)
    assert again == before and second < first
    driver(history)
    later, third = summed(service)
    assert later == read_lineage(LineageService(history.database, store)) != before
    assert third < first
