"""Periodic reads of the catalog take the same number of statements for many applications as for few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from sqlalchemy import event, insert

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.contracts.measurements import DriverReport
from epochal.service.catalog.database import Database
from epochal.service.catalog.ledger import ExecutionLedger
from epochal.service.catalog.models import Application, Artifact, Attempt, Branch, Epoch, Execution, Report, Version
from epochal.service.domain.pages import CursorSeal, PageRequest
from epochal.service.domain.snapshots import ApplicationHead
from epochal.service.queries.applications import ApplicationQueries
from epochal.service.queries.snapshots import SnapshotDirectory
from epochal.service.runtime.metrics import Metrics
from epochal.service.runtime.replicas.lag import ReplicaLags
from epochal.service.runtime.replicas.serving import ServedReplicas
from tests.kit.catalogs import url as url

FEW, MORE = 2, 30
MOMENT = datetime.now(UTC) - timedelta(hours=1)
MADE = {"created_at": MOMENT, "created_by": "me"}


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url)
    with database.writing() as session:
        session.add(Artifact(sha256="a" * 64, filename="flights.py", bytes=1, uploaded_at=MOMENT, **MADE))
    yield database
    database.close()


def register(database: Database, names: list[str]) -> None:
    """Register running applications, each with a committed and a prepared epoch."""
    each: dict[Any, dict[str, Any]] = {
        Application: {"shadow": False, "updated_at": MOMENT, **MADE},
        Version: {"number": 1, "artifact": "a" * 64, "parameters": {}, "configuration": {}, **MADE},
        Branch: {"kind": "start", "head_epoch": 2, "attempt": 1, "owned": True, "last_attempt": 1, **MADE},
        Execution: {"version": 1, "state": "running", "attempt": 1, "available_now": False, "drain": True},
        Attempt: {"number": 1, "state": "running", "started_at": MOMENT, "begun_at": MOMENT},
        Report: {"attempt": 1, "before": {}, "latest": DriverReport(number=1).model_dump(mode="json")},
    }
    own: dict[Any, Callable[[str], dict[str, Any]]] = {
        Application: lambda name: {"id": name, "name": name, "branch": f"{name}-1", "execution": name},
        Version: lambda name: {"application": name},
        Branch: lambda name: {"id": f"{name}-1", "application": name, "head_branch": f"{name}-1"},
        Execution: lambda name: {"id": name, "application": name, "branch": f"{name}-1", "started_at": MOMENT},
        Attempt: lambda name: {"execution": name},
        Report: lambda name: {"application": name, "execution": name, "reported_at": MOMENT},
    }
    with database.writing() as session:
        for model, columns in each.items():
            session.execute(insert(model), [{**columns, **own[model](name)} for name in names])
    for name in names:
        add_epochs(database, f"{name}-1", name, "committed", "prepared")


def add_epochs(database: Database, branch: str, execution: str, *states: str, first: int = 1) -> None:
    decided = {"manifest_path": f"{branch}/m.json", "manifest_sha256": "c" * 64, "committed_at": MOMENT}
    rows = [
        {"branch": branch, "epoch": epoch, "execution": execution, "attempt": 1, "state": state, "started_at": MOMENT}
        | (decided if state in ("prepared", "committed") else {})
        for epoch, state in enumerate(states, first)
    ]
    with database.writing() as session:
        for row in rows:
            session.execute(insert(Epoch), [row])


class NoReplicas:
    def application(self, name: str) -> None:
        return None


def supervision(database: Database) -> None:
    assert ExecutionLedger(database).supervised().executions


def metrics(database: Database) -> None:
    assert b'epochal_committed_epochs_total{application="app-0"}' in Metrics(database).render()


def heads(database: Database) -> None:
    assert all(head.committed and head.prepared for head in SnapshotDirectory(database).heads())


def lags(database: Database) -> None:
    found = ReplicaLags(database, cast(ServedReplicas, NoReplicas()))()
    assert all(lag.epochs == 1 and lag.seconds > 3000 for lag in found.values())


def answers(database: Database) -> None:
    page = ApplicationQueries(database).applications(
        PageRequest(100, None, CursorSeal(b"seal", ("applications",))), "default"
    )
    assert all(item.state == "running" and item.head and item.head.epoch == 1 for item in page.items)


READS = [supervision, metrics, heads, lags, answers]


def test_number_of_statements_does_not_grow_with_applications(database: Database) -> None:
    statements: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *of: statements.append(of[2]))
    counted = []
    for names in ([f"app-{number}" for number in range(FEW)], [f"app-{number}" for number in range(FEW, MORE)]):
        register(database, names)
        found = {}
        for read in READS:
            statements.clear()
            read(database)
            found[read.__name__] = len(statements)
        counted.append(found)
    assert counted[0] == counted[1] and min(counted[0].values()) > 0


def test_application_heads_follow_the_lineage_of_their_application(database: Database) -> None:
    """The head is the latest committed epoch of the lineage, also if the branch itself has none. Epochs of a parent
    count up to the fork only."""
    register(database, ["first"])
    add_epochs(database, "first-1", "first", "committed", "committed", "aborted", "committed", first=3)
    with database.writing() as session:
        for name, parent, epoch in (
            ("fork", "first-1", 3),
            ("fork-of-it", "fork-1", 8),
            ("new", None, None),
            ("deleted", "first-1", 3),
        ):
            add_application(session, name, parent, epoch)
    add_epochs(database, "fork-1", "first", "started", first=8)

    def reference(epoch: int) -> ManifestReference:
        return ManifestReference(branch="first-1", epoch=epoch, path="first-1/m.json", sha256="c" * 64)

    directory = SnapshotDirectory(database)
    assert list(directory.heads()) == [
        ApplicationHead("first", "first-1", reference(6), (reference(2),)),
        ApplicationHead("fork", "fork-1", reference(3), ()),
        ApplicationHead("fork-of-it", "fork-of-it-1", reference(3), ()),
        ApplicationHead("new", "new-1", None, ()),
    ]
    assert directory.head("fork-of-it") == ApplicationHead("fork-of-it", "fork-of-it-1", reference(3), ())


def add_application(session: Any, name: str, parent: str | None, epoch: int | None) -> None:
    deleted = MOMENT if name == "deleted" else None
    row = {"id": name, "name": name, "branch": f"{name}-1", "shadow": False, "updated_at": MOMENT}
    session.execute(insert(Application), [{**row, "deleted_at": deleted, **MADE}])
    branch = {"id": f"{name}-1", "application": name, "kind": "fork", "parent_branch": parent, "parent_epoch": epoch}
    session.execute(insert(Branch), [{**branch, "attempt": 0, "owned": False, "last_attempt": 0, **MADE}])


def test_lag_of_a_replica_counts_from_its_first_missing_epoch(database: Database) -> None:
    register(database, ["first"])
    add_epochs(database, "first-1", "first", "committed", first=3)

    class ReplicaAtEpochOne:
        def application(self, name: str) -> Any:
            return type("At", (), {"at": EpochKey("first-1", 1)})()

    (lag,) = ReplicaLags(database, cast(ServedReplicas, ReplicaAtEpochOne()))().values()
    assert lag.epochs == 2 and lag.seconds > 3000
