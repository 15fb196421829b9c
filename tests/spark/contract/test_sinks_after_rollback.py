"""Sinks after a rollback of their application: a new branch writes to the target of the old one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from epochal.backends.files import FilesBackend
from epochal.background.task import BackgroundTask
from epochal.contracts.backend import DecidedEpoch, SinkBackend
from epochal.contracts.catalog import EpochRange, Succession
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.errors import EpochalError, SinkError
from epochal.faults import FaultPoint, injected
from epochal.testing.contract import SinkHarness
from epochal.testing.servers.s3 import SeaweedServer
from epochal.testing.servers.s3_proxy import S3Proxy
from epochal.testing.sink_contract import APPLICATION, SCHEMA, pre_commit, rows, same
from tests.kit.databases import DbmsDatabase
from tests.kit.delta_tables import DeltaFolder
from tests.kit.iceberg_tables import sqlite_catalog
from tests.servers.contract.hdfs_folder import HdfsFolder
from tests.servers.contract.s3_folder import ObjectFolder
from tests.servers.contract.test_kafka_sink import Topic
from tests.servers.contract.test_postgresql_two_phase import TwoPhaseDatabase
from tests.spark.contract.test_files_sink import Folder

FIRST, SECOND, THIRD = "main", "second", "third"
STEPS = [
    ("files", "R1.files.inherited"),
    ("files", "R1.files.moved-aside"),
    ("files", "R1.files.moved-back"),
    pytest.param("hdfs", "R1.hdfs.inherited", marks=pytest.mark.server),
    pytest.param("hdfs", "R1.hdfs.moved-aside", marks=pytest.mark.server),
    pytest.param("hdfs", "R1.hdfs.moved-back", marks=pytest.mark.server),
    pytest.param("objects", "R1.objects.inherited", marks=pytest.mark.server),
    pytest.param("objects", "R1.objects.noted", marks=pytest.mark.server),
    pytest.param("objects", "R1.objects.moved-aside", marks=pytest.mark.server),
    pytest.param("objects", "R1.objects.moved-back", marks=pytest.mark.server),
]

Make = Callable[[], SinkHarness]


def at(branch: str, number: int, parent: EpochKey | None = None, attempt: int = 1) -> EpochScope:
    return EpochScope(APPLICATION, EpochKey(branch, number), attempt, parent)


def left_behind(*branches: str, first: int, last: int, aside: bool = False, used: int | None = None) -> Succession:
    return Succession(
        branches=branches,
        left_behind=(EpochRange(first=first, last=last),),
        last=used or last,
        move_aside=aside,
    )


def made(harness: SinkHarness) -> SinkBackend:
    backend = harness.make()
    backend.check(SCHEMA)
    return backend


def taken_over(harness: SinkHarness, branch: str, succession: Succession, attempt: int = 1) -> SinkBackend:
    backend = made(harness)
    backend.succeed(at(branch, 0, attempt=attempt), succession)
    backend.recover(at(branch, 0, attempt=attempt))
    return backend


def committed(backend: SinkBackend, scope: EpochScope, *ids: int) -> None:
    """Every epoch of these tests has rows."""
    handle = pre_commit(backend, scope, rows(*ids))
    backend.commit_decided([DecidedEpoch(scope, (handle,), scope.parent_in_branch)])


def first_branch(harness: SinkHarness) -> SinkBackend:
    """Epochs 1, 2 and 3, of one row each."""
    backend = made(harness)
    backend.recover(at(FIRST, 0))
    for number in (1, 2, 3):
        committed(backend, at(FIRST, number, EpochKey(FIRST, number - 1) if number > 1 else None), number)
    return backend


@pytest.fixture(
    params=[
        "files",
        "sqlite",
        "delta",
        "iceberg",
        pytest.param("hdfs", marks=pytest.mark.server),
        pytest.param("objects", marks=pytest.mark.server),
        pytest.param("kafka", marks=pytest.mark.server),
        pytest.param("postgresql", marks=pytest.mark.server),
        pytest.param("two-phase", marks=pytest.mark.server),
    ]
)
def harness(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SinkHarness]:
    match request.param:
        case "files":
            yield Folder(tmp_path / "out", "json")
            return
        case "delta":
            yield DeltaFolder(tmp_path / "orders")
            return
        case "iceberg":
            yield sqlite_catalog(tmp_path)
            return
        case "sqlite":
            url = f"sqlite:///{tmp_path / 'out.sqlite'}"
            database: DbmsDatabase | TwoPhaseDatabase = DbmsDatabase(url, tmp_path, monkeypatch)
        case "hdfs":
            yield HdfsFolder(request.getfixturevalue("hdfs_server"))
            return
        case "objects":
            yield ObjectFolder(request.getfixturevalue("s3_server"), tmp_path)
            return
        case "kafka":
            yield Topic(request.getfixturevalue("kafka_server"), tmp_path)
            return
        case "postgresql":
            database = DbmsDatabase(request.getfixturevalue("postgresql_url"), tmp_path, monkeypatch)
        case _:
            database = TwoPhaseDatabase(request.getfixturevalue("postgresql_url"), tmp_path, monkeypatch)
    yield database
    database.close()


@pytest.mark.alternating(2)
def test_new_branch_continues_beside_the_abandoned_epochs(harness: SinkHarness) -> None:
    first_branch(harness)
    backend = taken_over(harness, SECOND, left_behind(FIRST, first=2, last=3))
    committed(backend, at(SECOND, 4, EpochKey(FIRST, 1)), 4)
    committed(backend, at(SECOND, 5, EpochKey(SECOND, 4)), 5)
    assert same(harness.visible(), rows(1, 2, 3, 4, 5))

    again = made(harness)  # a later attempt of the same branch
    again.succeed(at(SECOND, 5, attempt=2), left_behind(FIRST, first=2, last=3))
    again.recover(at(SECOND, 5, attempt=2))
    committed(again, at(SECOND, 6, EpochKey(SECOND, 5), attempt=2), 6)
    assert same(harness.visible(), rows(1, 2, 3, 4, 5, 6))


@pytest.mark.alternating(2)
def test_third_branch_continues_the_abandoned_one(harness: SinkHarness) -> None:
    first_branch(harness)
    second = taken_over(harness, SECOND, left_behind(FIRST, first=2, last=3))
    committed(second, at(SECOND, 4, EpochKey(FIRST, 1)), 4)
    third = taken_over(harness, THIRD, left_behind(FIRST, SECOND, first=4, last=4))
    committed(third, at(THIRD, 5, EpochKey(FIRST, 3)), 5)
    assert same(harness.visible(), rows(1, 2, 3, 4, 5))


def test_a_late_driver_of_the_old_branch_changes_nothing(harness: SinkHarness) -> None:
    """The driver was stopped in a commit that its successor finished, and it has an undecided epoch."""
    old = made(harness)
    old.recover(at(FIRST, 0))
    handle = pre_commit(old, at(FIRST, 1), rows(1))
    made(harness).commit(at(FIRST, 1), [handle])
    undecided = pre_commit(old, at(FIRST, 2, EpochKey(FIRST, 1)), rows(2))
    backend = taken_over(harness, SECOND, left_behind(FIRST, first=1, last=2))
    committed(backend, at(SECOND, 3), 3)

    with suppress(EpochalError):
        old.commit(at(FIRST, 1), [handle])
    with suppress(EpochalError):
        old.recover(at(FIRST, 1))
    old.sweep(at(FIRST, 2, EpochKey(FIRST, 1)), [])
    assert undecided.rows == 1
    assert same(harness.visible(), rows(1, 3))
    committed(backend, at(SECOND, 4, EpochKey(SECOND, 3)), 4)
    assert same(harness.visible(), rows(1, 3, 4))


@pytest.mark.parametrize(
    "harness",
    ["files", *(pytest.param(sink, marks=pytest.mark.server) for sink in ("objects", "two-phase"))],
    indirect=True,
)
def test_staged_files_of_the_old_branch_are_deleted(harness: SinkHarness) -> None:
    old = first_branch(harness)
    pre_commit(old, at(FIRST, 4, EpochKey(FIRST, 3)), rows(4))
    assert harness.leftovers()
    taken_over(harness, SECOND, left_behind(FIRST, first=2, last=4))
    assert harness.leftovers() == []


@pytest.mark.parametrize(
    "harness", ["files", *(pytest.param(sink, marks=pytest.mark.server) for sink in ("hdfs", "objects"))], indirect=True
)
def test_folders_are_moved_aside_and_restored(harness: SinkHarness) -> None:
    first_branch(harness)
    second = taken_over(harness, SECOND, left_behind(FIRST, first=2, last=3, aside=True))
    assert same(harness.visible(), rows(1))
    committed(second, at(SECOND, 4, EpochKey(FIRST, 1)), 4)
    assert same(harness.visible(), rows(1, 4))

    third = taken_over(harness, THIRD, left_behind(FIRST, SECOND, first=4, last=4, aside=True))
    assert same(harness.visible(), rows(1, 2, 3))
    committed(third, at(THIRD, 5, EpochKey(FIRST, 3)), 5)
    assert same(harness.visible(), rows(1, 2, 3, 5))


class Crash(BaseException):
    """Simulated death of the process."""


@pytest.mark.parametrize(("harness", "step"), STEPS, indirect=["harness"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.alternating(2)
def test_next_attempt_recovers_from_a_crash_at_any_step(harness: SinkHarness, step: str, times: int) -> None:
    first_branch(harness)
    second = taken_over(harness, SECOND, left_behind(FIRST, first=2, last=3, aside=True))
    committed(second, at(SECOND, 4, EpochKey(FIRST, 1)), 4)
    committed(second, at(SECOND, 5, EpochKey(SECOND, 4)), 5)
    succession = Succession(
        branches=(FIRST, SECOND), left_behind=(EpochRange(first=4, last=5),), last=5, move_aside=True
    )
    left = times

    def crash(point: FaultPoint, _epoch: int | None) -> None:
        nonlocal left
        if point.name == step:
            left -= 1
            if left == 0:
                raise Crash

    with injected(crash), suppress(Crash):
        taken_over(harness, THIRD, succession)
    third = taken_over(harness, THIRD, succession, attempt=2)
    assert same(harness.visible(), rows(1, 2, 3))
    committed(third, at(THIRD, 6, EpochKey(FIRST, 3), attempt=2), 6)
    assert same(harness.visible(), rows(1, 2, 3, 6))


def test_folder_of_another_application_is_refused(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path / "out"))
    backend.recover(at(FIRST, 0))
    stranger = left_behind("another", first=1, last=9)
    backend.succeed(at(SECOND, 0), stranger)
    with pytest.raises(SinkError, match="belongs to application 'application', branch main"):
        backend.recover(at(SECOND, 0))
    foreign = EpochScope("foreign", EpochKey(SECOND, 0), 1, None)
    backend.succeed(foreign, left_behind(FIRST, first=1, last=9))
    with pytest.raises(SinkError, match="belongs to application 'application'"):
        backend.recover(foreign)


def test_folder_ahead_of_every_branch_is_refused(tmp_path: Path) -> None:
    harness = Folder(tmp_path / "out", "json")
    first_branch(harness)
    with pytest.raises(SinkError, match="already holds epoch 3"):
        taken_over(harness, SECOND, left_behind(FIRST, first=2, last=2))


@pytest.mark.server
@pytest.mark.parametrize(
    ("harness", "step"),
    [("two-phase", "R1.postgresql.swept-branch"), ("objects", "R1.objects.abandoned")],
    indirect=["harness"],
)
def test_next_attempt_recovers_from_a_crash_after_sweeping_a_branch(harness: SinkHarness, step: str) -> None:
    first = first_branch(harness)
    pre_commit(first, at(FIRST, 4, EpochKey(FIRST, 3)), rows(99))
    assert harness.leftovers() != []

    def crash(point: FaultPoint, _epoch: int | None) -> None:
        if point.name == step:
            raise Crash

    with injected(crash), suppress(Crash):
        taken_over(harness, SECOND, left_behind(FIRST, first=2, last=4))
    second = taken_over(harness, SECOND, left_behind(FIRST, first=2, last=4), attempt=2)
    assert harness.leftovers() == []
    committed(second, at(SECOND, 5, EpochKey(FIRST, 1), attempt=2), 5)
    assert same(harness.visible(), rows(1, 2, 3, 5))


@pytest.mark.server
def test_late_requests_of_the_old_branch_change_no_lists(
    s3_server: SeaweedServer, s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    """A commit, a move aside and a change of owner land after the folder has passed to a third branch."""
    harness = ObjectFolder(s3_server, tmp_path, endpoint=s3_proxy.endpoint)
    old = first_branch(harness)
    undecided = at(FIRST, 4, EpochKey(FIRST, 3))
    handle = pre_commit(old, undecided, rows(4))
    aside = left_behind(FIRST, first=2, last=4, aside=True)

    def late(call: Callable[[], object], containing: str) -> BackgroundTask[None]:
        s3_proxy.hold(times=1, kinds=["PUT"], containing=containing)
        held = s3_proxy.held()
        task = BackgroundTask("late-driver", lambda: _without_errors(call))
        s3_proxy.wait_for_held(held + 1)
        return task

    tasks = [
        late(lambda: old.commit(undecided, [handle]), "_epochs/0000000004"),
        late(lambda: taken_over(harness, SECOND, aside), "_epochal.json"),
    ]
    taken_over(harness, SECOND, aside, attempt=2)
    tasks.append(late(lambda: taken_over(harness, THIRD, left_behind(FIRST, SECOND, first=5, last=5)), "_epochs/"))
    third = taken_over(harness, THIRD, left_behind(FIRST, SECOND, first=5, last=5), attempt=2)
    before = harness.lists()
    landed = s3_proxy.release()
    for task in tasks:
        task.wait()
    assert [request.server_status for request in landed] == [412] * 3
    assert harness.lists() == before
    assert same(harness.visible(), rows(1, 2, 3))
    committed(third, at(THIRD, 6, EpochKey(FIRST, 3)), 6)
    assert same(harness.visible(), rows(1, 2, 3, 6))
    assert harness.leftovers() == []


def _without_errors(call: Callable[[], object]) -> None:
    with suppress(EpochalError):
        call()
