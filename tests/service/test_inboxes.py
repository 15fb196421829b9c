"""Inboxes for calls of entries in the catalog, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select

from epochal.contracts.catalog import EpochCounts, EpochTerms, ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.contracts.inbox import InboxPage
from epochal.errors import CatalogUnavailable, InboxFull, NotFound, RequestIdReused
from epochal.service.catalog import inboxes
from epochal.service.catalog.database import Database
from epochal.service.catalog.inboxes import InboxRepository, NewCall, NewCalls, Taken, newest_calls, page_of
from epochal.service.catalog.models import Application, Epoch, Execution, Inbox, InboxBatch, InboxCall
from epochal.service.catalog.sql_catalog import SqlCatalog
from epochal.service.catalog.standalone import standalone_catalog
from epochal.service.catalog.types import now
from epochal.service.commands.calls import _Intake
from epochal.service.domain.setting_sections import Kept
from epochal.service.runtime.expiry import CatalogExpiry
from tests.kit.catalogs import new_sqlite_catalog
from tests.kit.lives import failing_at


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return new_sqlite_catalog(tmp_path / "catalog.sqlite")
    return str(request.getfixturevalue("postgresql_catalog_url"))


class Store:
    """An application with entries and its driver."""

    def __init__(self, url: str) -> None:
        self.driver: SqlCatalog = standalone_catalog(url, "store", "a" * 64)
        self.database = Database(url)
        self.branch = self.driver.begin_attempt().branch
        self.head: EpochKey | None = None
        with self.database.reading() as session:
            self.id = session.scalars(select(Application.id)).one()

    def close(self) -> None:
        self.driver._database.close()
        self.database.close()

    def take(self, *calls: tuple[str, str], entry: str = "get", most: int = 1000) -> Taken:
        (outcome,) = self.take_together(posted(entry, *calls), most=most)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def take_together(self, *posts: NewCalls, most: int = 1000) -> Sequence[Taken | RequestIdReused | InboxFull]:
        with self.database.writing() as session:
            return InboxRepository(session, self.id).take(posts, most)

    def page(self, after: int, through: int | None = None) -> InboxPage:
        return InboxPage.model_validate_json(page_of(self.database, self.driver.execution, after, through))

    def epoch(self, calls_through: int | None = None) -> EpochKey:
        key = EpochKey(self.branch, 1 if self.head is None else self.head.epoch + 1)
        path = f"{self.branch}/manifests/{key.epoch}-1.json"
        manifest = ManifestReference(branch=self.branch, epoch=key.epoch, path=path, sha256=64 * "c")
        self.driver.open_epoch(key.epoch, self.head)
        terms = EpochTerms(calls_through=calls_through)
        self.driver.prepare_epoch(key.epoch, self.head, manifest, EpochCounts(), terms)
        self.driver.commit_epoch(key.epoch)
        self.head = key
        return key

    def collect(self, *epochs: EpochKey) -> None:
        with self.database.writing() as session:
            for key in epochs:
                session.get_one(Epoch, (key.branch, key.epoch)).collected_at = now()

    def counts(self) -> tuple[int, int]:
        with self.database.reading() as session:
            return (
                session.scalars(select(func.count()).select_from(InboxBatch)).one(),
                session.scalars(select(func.count()).select_from(InboxCall)).one(),
            )


def posted(entry: str, *calls: tuple[str, str]) -> NewCalls:
    return NewCalls(entry, tuple(NewCall.of(entry, id, json.dumps({"key": key})) for id, key in calls))


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = Store(url)
    yield made
    made.close()


def test_calls_are_numbered_and_read_in_their_order(store: Store) -> None:
    first = store.take(("a", "x"), ("b", "y"))
    second = store.take(("c", "x"), entry="put")
    numbers = [call.number for taken in (first, second) for call in taken.values()]
    assert numbers == sorted(set(numbers)) and all(call.new for call in first.values())

    page = store.page(0)
    assert page == store.page(0) == store.page(numbers[0] - 1)
    assert [(each.entry, each.request_ids, each.arguments) for each in page.batches] == [
        ("get", ("a", "b"), ('{"key": "x"}', '{"key": "y"}')),
        ("put", ("c",), ('{"key": "x"}',)),
    ]
    assert page.last == numbers[-1] and page.batches[0].first == numbers[0]
    cut = store.page(numbers[0], numbers[1]).batches
    assert [(each.first, each.request_ids) for each in cut] == [(numbers[1], ("b",))]
    assert store.page(numbers[-1]).batches == ()
    assert newest_calls(store.database, [store.driver.execution, "other"]) == {store.driver.execution: numbers[-1]}


def test_a_request_id_identifies_one_call(store: Store) -> None:
    first = store.take(("a", "x"), ("b", "y"))
    again = store.take(("b", "y"), ("c", "z"), ("a", "x"))
    assert {id: again[id].number for id in "ab"} == {id: first[id].number for id in "ab"}
    assert {id: call.new for id, call in again.items()} == {"b": False, "c": True, "a": False}
    for other in (posted("get", ("d", "x"), ("a", "y")), posted("put", ("a", "x"))):
        (refused,) = store.take_together(other)
        assert isinstance(refused, RequestIdReused) and "'a'" in refused.message
    assert store.counts() == (2, 3)  # no call of the refused requests was added


def test_requests_in_one_batch_are_accepted_or_refused_separately(store: Store) -> None:
    outcomes = store.take_together(
        posted("get", ("a", "x")),
        posted("get", ("a", "y")),
        posted("get", ("a", "x"), ("b", "x")),
        posted("get", *((f"c{number}", "x") for number in range(9))),
        posted("get", ("d", "x")),
        most=10,
    )
    assert [type(outcome) for outcome in outcomes] == [dict, RequestIdReused, dict, InboxFull, dict]
    assert outcomes[0]["a"].number == outcomes[2]["a"].number  # type: ignore[index]
    assert [each.request_ids for each in store.page(0).batches] == [("a",), ("b",), ("d",)]


def test_the_number_of_waiting_calls_is_bounded(store: Store) -> None:
    first = store.take(("a", "x"), ("b", "x"), ("c", "x"), most=3)
    with pytest.raises(InboxFull, match="3 calls are waiting"):
        store.take(("d", "x"), most=3)
    assert store.take(("a", "x"), most=3)["a"] == first["a"].__class__(first["a"].number, "get", new=False)
    store.epoch(calls_through=first["c"].number)
    store.take(("d", "x"), most=3)
    store.epoch()  # an epoch without calls keeps the position of its parent
    store.take(("e", "x"), ("f", "x"), most=3)
    with pytest.raises(InboxFull):
        store.take(("g", "x"), most=3)


def test_call_numbers_continue_above_those_of_processed_calls(store: Store) -> None:
    far = store.take(("a", "x"))["a"].number + 10**15
    store.epoch(calls_through=far)
    assert store.take(("b", "x"))["b"].number == far + 1
    assert store.page(0).taken == far


def test_a_page_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        store.take((f"a{number}", "x"), (f"b{number}", "x"))
    monkeypatch.setattr(inboxes, "CALLS_AT_ONCE", 3)
    assert len(store.page(0).batches) == 2
    monkeypatch.setattr(inboxes, "CALLS_BYTES", 1)
    assert len(store.page(0).batches) == 1


def test_a_call_is_found_by_its_id_and_entry(store: Store) -> None:
    taken = store.take(("a", "x"))["a"]
    with store.database.reading() as session:
        repository = InboxRepository(session, store.id)
        assert repository.find("get", "a").number == taken.number
        for entry, request_id in (("get", "b"), ("put", "a")):
            with pytest.raises(NotFound, match="no call with the request id"):
                repository.find(entry, request_id)


def test_calls_are_retained_while_a_rollback_can_repeat_them(store: Store) -> None:
    old = store.take(("a", "x"), ("b", "x"))
    before = store.epoch()
    taking = store.epoch(calls_through=old["b"].number)
    store.take(("c", "x"))
    after = store.epoch()
    calls_expiry = CatalogExpiry(store.database, Kept(calls_days=1e-9))
    for epochs, remaining in (((), (2, 3)), ((before,), (1, 1)), ((taking, after), (1, 1))):
        store.collect(*epochs)
        calls_expiry.expire_calls()
        assert store.counts() == remaining
    assert CatalogExpiry(store.database, Kept()).expire_calls() is False
    assert store.take(("a", "y"))["a"].new  # the expired id can be used again

    with store.database.writing() as session:
        session.get_one(Application, store.id).deleted_at = now() - timedelta(days=1)
    calls_expiry.expire_calls()
    assert store.counts() == (0, 0)


def test_concurrent_requests_are_each_accepted_once(store: Store) -> None:
    notified: list[object] = []
    intake = _Intake(store.database, 10_000, notified.append)

    def call(number: int) -> Taken:
        # Two requests, possibly concurrent, use each id.
        return intake.take(store.id, posted("get", (f"r{number // 2}", "x"), (f"only{number}", "x")))

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(call, range(64)))
    by_id: dict[str, set[int]] = {}
    for taken in found:
        for request_id, each in taken.items():
            by_id.setdefault(request_id, set()).add(each.number)
    assert len(by_id) == 96 and all(len(numbers) == 1 for numbers in by_id.values())
    read = [id for each in store.page(0).batches for id in each.request_ids]
    assert sorted(read) == sorted(by_id)
    assert 1 <= len(notified) <= 64
    with store.database.reading() as session:
        assert session.get_one(Inbox, store.id).accepted == 96
        assert session.scalars(select(Execution.id)).one() == store.driver.execution


def test_a_refused_request_does_not_affect_others(store: Store) -> None:
    intake = _Intake(store.database, 2, lambda topics: None)
    intake.take(store.id, posted("get", ("a", "x")))
    refused: list[Callable[[], object]] = [
        lambda: intake.take(store.id, posted("get", ("a", "y"))),
        lambda: intake.take(store.id, posted("get", ("b", "y"), ("c", "y"))),
    ]
    for call in refused:
        with pytest.raises((RequestIdReused, InboxFull)):
            call()
    assert intake.take(store.id, posted("get", ("d", "x")))["d"].new


@pytest.mark.parametrize(("point", "taken"), [("calls.written", False), ("calls.landed", True)])
def test_calls_repeated_after_a_lost_answer_are_accepted_once(store: Store, point: str, taken: bool) -> None:
    intake, calls = _Intake(store.database, 10, lambda topics: None), posted("get", ("a", "x"), ("b", "x"))
    with failing_at(point, CatalogUnavailable("the control plane died")), pytest.raises(CatalogUnavailable):
        intake.take(store.id, calls)
    assert store.counts() == ((1, 2) if taken else (0, 0))
    again = intake.take(store.id, calls)
    assert [call.new for call in again.values()] == [not taken] * 2
    (batch,) = store.page(0).batches
    assert [batch.first, batch.last] == [call.number for call in again.values()]
