"""Operations on the whole store that a control plane did not end: the next one begins them again, by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from epochal.errors import Conflict
from epochal.service.catalog.collection_operations import GONE_AFTER, StoreOperations
from epochal.service.catalog.database import Database
from epochal.service.catalog.migration import migrate_database
from epochal.service.catalog.models import Operation
from epochal.service.catalog.types import now
from epochal.service.runtime.collection_worker import StoreWorker
from tests.waiting import eventually


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'catalog.sqlite'}")
    migrate_database(database)
    yield database
    database.close()


def operation(database: Database, id: str) -> Operation:
    with database.reading() as session:
        return session.get_one(Operation, id)


def not_heard_for_long(database: Database, id: str) -> None:
    with database.writing() as session:
        row = session.get_one(Operation, id)
        row.arguments = {**row.arguments, "beat": (now() - 2 * GONE_AFTER).isoformat()}


@contextmanager
def control_plane(database: Database, verify: Callable[[dict[str, Any], Callable[[str], None]], Any]) -> Iterator[Any]:
    worker = StoreWorker(StoreOperations(database), {"verify": verify}, None)
    worker.open()
    try:
        yield worker
    finally:
        worker.close()


def answered(request: dict[str, Any], report: Callable[[str], None]) -> dict[str, Any]:
    return {"checked": request["application"]}


def test_what_a_killed_control_plane_was_at_is_begun_again(database: Database) -> None:
    killed = StoreOperations(database).begin("verify", {"application": "flights"}, "somebody")
    not_heard_for_long(database, killed.id)
    with control_plane(database, answered):
        eventually(lambda: operation(database, killed.id).state != "running")
    ended = operation(database, killed.id)
    assert (ended.state, ended.result, ended.created_by) == ("succeeded", {"checked": "flights"}, "somebody")


def test_what_another_control_plane_is_at_is_left_to_it(database: Database) -> None:
    theirs = StoreOperations(database)
    under_way = theirs.begin("verify", {"application": "flights"}, "somebody")
    with control_plane(database, answered) as worker:
        with pytest.raises(Conflict, match=f"verify {under_way.id}"):
            worker.begin("verify", {}, "another")
        assert operation(database, under_way.id).state == "running"
    theirs.succeeded(under_way.id, {})


def test_a_control_plane_that_ends_in_order_hands_over_at_once(database: Database) -> None:
    begun = threading.Event()

    def unending(request: dict[str, Any], report: Callable[[str], None]) -> dict[str, Any]:
        begun.set()
        while True:
            report("still at it")

    with control_plane(database, unending) as worker:
        id = worker.begin("verify", {"application": "flights"}, "somebody").id
        assert begun.wait(20)
    assert operation(database, id).state == "running"
    with control_plane(database, answered):
        eventually(lambda: operation(database, id).state == "succeeded")


def test_a_process_that_was_taken_for_gone_ends_its_work(database: Database) -> None:
    slow = StoreOperations(database)
    id = slow.begin("verify", {"application": "flights"}, "somebody").id
    not_heard_for_long(database, id)
    successor = StoreOperations(database)
    taken = successor.take_over()
    assert taken is not None and (taken.id, taken.request) == (id, {"application": "flights"})
    for late in (lambda: slow.reporter(id)("so far"), lambda: slow.succeeded(id, {}), lambda: slow.beat(id)):
        with pytest.raises(Conflict, match="no longer ours"):
            late()
    successor.succeeded(id, {"checked": "flights"})
    assert operation(database, id).result == {"checked": "flights"}
    assert StoreOperations(database).take_over() is None
