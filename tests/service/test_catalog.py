"""The guarded writes of the epoch protocol, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier

import pytest
from pydantic import ValidationError
from sqlalchemy import select

from epochal.contracts.catalog import (
    DriverStatus,
    EpochCounts,
    EpochTerms,
    Failure,
    ManifestReference,
    RecoveryPoint,
)
from epochal.contracts.identity import EpochKey
from epochal.errors import CatalogFull, CatalogUnavailable, Conflict, EpochalError, Fenced, NotFound
from epochal.service.catalog.branch_writer import ForeignManifest
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Attempt, Branch, Execution
from epochal.service.catalog.sql_catalog import SqlCatalog
from epochal.service.catalog.standalone import standalone_catalog
from epochal.service.domain.events import ControlEvent
from epochal.snapshots.manifest import FileReference
from tests.kit.catalogs import new_sqlite_catalog
from tests.spark.contract.local_stores import small_disk

ARTIFACT = "a" * 64
FAILURE = Failure(type="author-error", message="division by zero", step="E2", traceback="line 3")
COUNTS = EpochCounts(rows_in=10, rows_out=4, state_rows=3, state_bytes=900)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return new_sqlite_catalog(tmp_path / "catalog.sqlite")
    return str(request.getfixturevalue("postgresql_catalog_url"))


@pytest.fixture
def attempt(url: str) -> Iterator[Callable[[], SqlCatalog]]:
    made: list[SqlCatalog] = []

    def make() -> SqlCatalog:
        made.append(standalone_catalog(url, "flights", ARTIFACT))
        return made[-1]

    yield make
    for catalog in made:
        catalog._database.close()


def manifest(branch: str, epoch: int, attempt: int = 1) -> ManifestReference:
    return ManifestReference(
        branch=branch, epoch=epoch, path=f"{branch}/manifests/{epoch}-{attempt}.json", sha256=64 * "c"
    )


def run(catalog: SqlCatalog, point: RecoveryPoint, *epochs: int, parent: EpochKey | None = None) -> EpochKey | None:
    for epoch in epochs:
        catalog.open_epoch(epoch, parent)
        catalog.prepare_epoch(epoch, parent, manifest(point.branch, epoch), COUNTS)
        catalog.commit_epoch(epoch)
        parent = EpochKey(point.branch, epoch)
    return parent


def test_a_first_attempt_has_no_head_and_starts_with_epoch_1(attempt: Callable[[], SqlCatalog]) -> None:
    point = attempt().begin_attempt()

    assert (point.application, point.attempt, point.head, point.next_epoch) == ("flights", 1, None, 1)
    assert list(point.prepared) == [] and list(point.started) == []


def test_an_epoch_is_started_then_prepared_then_committed(attempt: Callable[[], SqlCatalog]) -> None:
    catalog = attempt()
    branch = catalog.begin_attempt().branch

    catalog.open_epoch(1, None)
    started = catalog.epoch(1)
    catalog.prepare_epoch(1, None, manifest(branch, 1), COUNTS, EpochTerms(opened_for=("input", "due")))
    prepared = catalog.epoch(1)
    catalog.commit_epoch(1)
    committed = catalog.epoch(1)

    assert started is not None and started.state == "started" and started.manifest is None
    assert prepared is not None and prepared.state == "prepared" and prepared.manifest == manifest(branch, 1)
    assert committed is not None and committed.state == "committed" and committed.rows_in == 10
    assert (started.opened_for, committed.opened_for) == ((), ("input", "due"))
    assert committed.started_at <= committed.prepared_at <= committed.committed_at  # type: ignore[operator]
    assert catalog.epoch(2) is None


def test_repeated_writes_have_no_effect(attempt: Callable[[], SqlCatalog]) -> None:
    catalog = attempt()
    branch = catalog.begin_attempt().branch
    assert catalog.begin_attempt().attempt == 1

    for _ in range(2):
        catalog.open_epoch(1, None)
    for _ in range(2):
        catalog.prepare_epoch(1, None, manifest(branch, 1), COUNTS)
    for _ in range(2):
        catalog.commit_epoch(1)
    catalog.open_epoch(2, EpochKey(branch, 1))
    for _ in range(2):
        catalog.abort_epoch(2, FAILURE)
    for _ in range(2):
        catalog.finish(None)

    aborted = catalog.epoch(2)
    assert aborted is not None and aborted.state == "aborted" and aborted.failure == FAILURE


def test_a_second_prepare_with_another_manifest_is_a_conflict(attempt: Callable[[], SqlCatalog]) -> None:
    catalog = attempt()
    branch = catalog.begin_attempt().branch
    catalog.open_epoch(1, None)
    catalog.prepare_epoch(1, None, manifest(branch, 1), COUNTS)

    with pytest.raises(Conflict):
        catalog.prepare_epoch(1, None, manifest(branch, 1, attempt=7), COUNTS)


@pytest.mark.parametrize("path", ["other-12345678/manifests/1.json", "manifests/1.json", "{branch}-2/manifests/1.json"])
def test_a_manifest_outside_its_branch_is_refused(attempt: Callable[[], SqlCatalog], path: str) -> None:
    catalog = attempt()
    branch = catalog.begin_attempt().branch
    catalog.open_epoch(1, None)
    foreign = manifest(branch, 1).model_copy(update={"path": path.format(branch=branch)})
    with pytest.raises(ForeignManifest, match=branch):
        catalog.prepare_epoch(1, None, foreign, COUNTS)
    assert (record := catalog.epoch(1)) is not None and record.state == "started"


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "main/../other/1.json", "main/./1.json", "main//1.json", "../1.json", "main/..", "main\\..\\1", ""],
)
def test_paths_outside_the_store_are_refused(path: str) -> None:
    with pytest.raises(ValidationError, match="relative to its root"):
        ManifestReference(branch="main", epoch=1, path=path, sha256=64 * "c")
    with pytest.raises(ValidationError, match="relative to its root"):
        FileReference(path=path, sha256=64 * "c", bytes=1, rows=1)


def test_a_prepared_epoch_cannot_be_aborted(attempt: Callable[[], SqlCatalog]) -> None:
    catalog = attempt()
    branch = catalog.begin_attempt().branch
    catalog.open_epoch(1, None)
    catalog.prepare_epoch(1, None, manifest(branch, 1), COUNTS)

    with pytest.raises(Conflict, match="prepared"):
        catalog.abort_epoch(1, FAILURE)


def test_an_epoch_is_opened_and_prepared_on_the_head_only(attempt: Callable[[], SqlCatalog]) -> None:
    catalog = attempt()
    point = catalog.begin_attempt()
    head = run(catalog, point, 1, 2)

    with pytest.raises(Conflict, match="head"):
        catalog.open_epoch(3, EpochKey(point.branch, 1))
    with pytest.raises(Conflict, match="head"):
        catalog.open_epoch(3, None)
    catalog.open_epoch(3, head)
    with pytest.raises(Conflict):
        catalog.prepare_epoch(3, EpochKey(point.branch, 1), manifest(point.branch, 3), COUNTS)
    assert catalog.epoch(3).state == "started"  # type: ignore[union-attr]


def test_epoch_numbers_increase(attempt: Callable[[], SqlCatalog]) -> None:
    catalog = attempt()
    point = catalog.begin_attempt()
    head = run(catalog, point, 5)

    with pytest.raises(Conflict, match="increase"):
        catalog.open_epoch(4, head)
    with pytest.raises(Conflict, match="committed"):
        catalog.open_epoch(5, head)


def test_epochs_are_committed_in_order(attempt: Callable[[], SqlCatalog]) -> None:
    catalog = attempt()
    branch = catalog.begin_attempt().branch
    catalog.open_epoch(1, None)
    catalog.prepare_epoch(1, None, manifest(branch, 1), COUNTS)
    catalog.open_epoch(2, EpochKey(branch, 1))
    catalog.prepare_epoch(2, EpochKey(branch, 1), manifest(branch, 2), COUNTS)

    with pytest.raises(Conflict, match="parent"):
        catalog.commit_epoch(2)
    catalog.commit_epoch(1)
    catalog.commit_epoch(2)
    assert catalog.epoch(2).state == "committed"  # type: ignore[union-attr]


def test_an_unopened_epoch_cannot_be_prepared_committed_or_aborted(attempt: Callable[[], SqlCatalog]) -> None:
    catalog = attempt()
    branch = catalog.begin_attempt().branch

    with pytest.raises(Conflict):
        catalog.prepare_epoch(1, None, manifest(branch, 1), COUNTS)
    with pytest.raises(Conflict):
        catalog.commit_epoch(1)
    with pytest.raises(Conflict):
        catalog.abort_epoch(1, FAILURE)


def test_a_later_attempt_fences_the_earlier_one_and_resumes_its_epochs(attempt: Callable[[], SqlCatalog]) -> None:
    old = attempt()
    first = old.begin_attempt()
    head = run(old, first, 1)
    old.open_epoch(2, head)
    old.prepare_epoch(2, head, manifest(first.branch, 2), COUNTS)
    old.open_epoch(3, EpochKey(first.branch, 2))

    new = attempt()
    point = new.begin_attempt()

    assert (point.attempt, point.branch, point.next_epoch) == (2, first.branch, 4)
    assert point.head == manifest(first.branch, 2)
    assert [record.epoch for record in point.prepared] == [2]
    assert [record.epoch for record in point.started] == [3]
    for write in (
        old.begin_attempt,
        lambda: old.open_epoch(4, EpochKey(first.branch, 2)),
        lambda: old.prepare_epoch(3, EpochKey(first.branch, 2), manifest(first.branch, 3), COUNTS),
        lambda: old.commit_epoch(2),
        lambda: old.abort_epoch(3, FAILURE),
        lambda: old.heartbeat(DriverStatus(phase="running")),
        lambda: old.finish(None),
    ):
        with pytest.raises(Fenced):
            write()
    new.commit_epoch(2)
    new.abort_epoch(3, FAILURE)
    run(new, point, 4, parent=EpochKey(first.branch, 2))


def test_a_superseded_attempt_cannot_begin(attempt: Callable[[], SqlCatalog]) -> None:
    slow = attempt()
    later = attempt()

    with pytest.raises(Fenced):
        slow.begin_attempt()
    assert later.begin_attempt().attempt == 2


def test_a_finished_attempt_cannot_write(attempt: Callable[[], SqlCatalog]) -> None:
    catalog = attempt()
    point = catalog.begin_attempt()
    run(catalog, point, 1)
    catalog.finish(None)

    with pytest.raises(Fenced):
        catalog.open_epoch(2, EpochKey(point.branch, 1))


def test_a_failed_attempt_stores_its_failure_and_leaves_the_execution_open(
    attempt: Callable[[], SqlCatalog],
) -> None:
    catalog = attempt()
    catalog.begin_attempt()
    catalog.heartbeat(DriverStatus(phase="running", epoch=1))
    catalog.finish(FAILURE)

    with catalog._database.reading() as session:
        execution = session.get_one(Execution, catalog.execution)
        row = session.scalars(select(Attempt).where(Attempt.execution == execution.id)).one()
        assert execution.state == "starting"
        assert (row.state, Failure.model_validate(row.failure)) == ("failed", FAILURE)


def test_one_of_two_concurrent_prepares_succeeds(attempt: Callable[[], SqlCatalog]) -> None:
    catalog = attempt()
    branch = catalog.begin_attempt().branch
    catalog.open_epoch(1, None)
    outcomes = concurrently(
        lambda: catalog.prepare_epoch(1, None, manifest(branch, 1, attempt=1), COUNTS),
        lambda: catalog.prepare_epoch(1, None, manifest(branch, 1, attempt=2), COUNTS),
    )

    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict", "NoneType"]


def test_a_fenced_attempt_cannot_prepare_after_its_successor_has_begun(attempt: Callable[[], SqlCatalog]) -> None:
    for _ in range(10):
        old = attempt()
        point = old.begin_attempt()
        head = point.head.key if point.head else None
        old.open_epoch(point.next_epoch, head)
        new = attempt_of_same_execution(old)

        prepared, begun = concurrently(
            lambda old=old, point=point, head=head: old.prepare_epoch(  # type: ignore[misc]
                point.next_epoch, head, manifest(point.branch, point.next_epoch), COUNTS
            ),
            new.begin_attempt,
        )

        assert isinstance(begun, RecoveryPoint)
        record = new.epoch(point.next_epoch)
        assert record is not None
        if isinstance(prepared, Fenced):
            assert record.state == "started" and begun.head == point.head
        else:
            assert prepared is None
            assert record.state == "prepared" and begun.head == manifest(point.branch, point.next_epoch)


def test_each_transition_publishes_an_event(url: str) -> None:
    made = standalone_catalog(url, "flights", ARTIFACT)
    events: list[ControlEvent] = []
    database = Database(url)
    database.listen(events.extend)
    catalog = SqlCatalog(database, made.execution, made.attempt)
    point = catalog.begin_attempt()
    catalog.heartbeat(DriverStatus(phase="running"))
    run(catalog, point, 1)
    catalog.finish(None)
    made._database.close()
    database.close()

    assert [(event.kind, event.data["state"]) for event in events] == [
        ("execution", "running"),
        ("epoch", "started"),
        ("epoch", "prepared"),
        ("epoch", "committed"),
        ("execution", "stopped"),
    ]
    assert {event.application for event in events} == {"flights"}


def test_attempt_numbers_increase_across_executions_of_a_branch(attempt: Callable[[], SqlCatalog]) -> None:
    first = attempt()
    first.begin_attempt()
    first.finish(None)
    second = attempt()

    assert second.execution != first.execution
    assert second.begin_attempt().attempt == 2


def test_an_unknown_attempt_is_not_found(attempt: Callable[[], SqlCatalog]) -> None:
    catalog = attempt()

    with pytest.raises(NotFound):
        SqlCatalog(catalog._database, catalog.execution, 9).begin_attempt()
    catalog.begin_attempt()
    with pytest.raises(NotFound):
        catalog.complete("no-such-directive", None)


def test_a_recovery_point_contains_the_time_of_the_database(attempt: Callable[[], SqlCatalog]) -> None:
    found = attempt().begin_attempt().catalog_time
    assert found is not None and abs(found - datetime.now(UTC)) < timedelta(seconds=10)


def test_a_full_disk_is_reported_and_the_call_succeeds_once_space_is_free(tmp_path: Path) -> None:
    with small_disk(2048, tmp_path / "small") as folder:
        url = f"sqlite:///{folder / 'catalog.sqlite'}"
        catalog, filler = standalone_catalog(url, "flights", ARTIFACT), folder / "filler"
        catalog.begin_attempt()
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096) == 4096:
                pass
        parent, failures = None, []
        for epoch in range(1, 100):  # enough calls to make SQLite's log grow
            try:
                catalog.open_epoch(epoch, parent)
            except EpochalError as error:
                failures.append(error)
                break
            catalog.abort_epoch(epoch, FAILURE)
        with pytest.raises(EpochalError) as opened:  # opening creates a file for shared memory
            standalone_catalog(url, "flights", ARTIFACT)
        assert failures
        for failure in (*failures, opened.value):
            assert type(failure) is CatalogFull, failure
            assert str(folder / "catalog.sqlite") in failure.message and "no space is left" in failure.message
        filler.unlink()
        catalog.open_epoch(epoch, parent)
        record = catalog.epoch(epoch)
        assert record is not None and record.state == "started"
        catalog._database.close()


def test_an_unreachable_catalog_is_reported() -> None:
    database = Database("postgresql://user:password@127.0.0.1:1/none")
    with pytest.raises(CatalogUnavailable), database.reading() as session:
        session.execute(select(Branch))


def concurrently(*calls: Callable[[], object]) -> list[object]:
    """Run all calls concurrently; the result or the error of each."""
    barrier = Barrier(len(calls))

    def run_one(call: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return call()
        except EpochalError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run_one, calls))


def attempt_of_same_execution(old: SqlCatalog) -> SqlCatalog:
    """Register the next attempt while the old one still runs."""
    with old._database.writing() as session:
        execution = session.get_one(Execution, old.execution)
        branch = session.get_one(Branch, execution.branch)
        branch.last_attempt += 1
        attempt = Attempt(
            execution=execution.id, number=branch.last_attempt, state="running", started_at=execution.started_at
        )
        session.add(attempt)
        return SqlCatalog(old._database, execution.id, branch.last_attempt)
