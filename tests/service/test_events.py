"""Events as rows of the catalog, on SQLite and PostgreSQL: each is delivered once and in order."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from epochal.client import Client
from epochal.errors import EventsExpired
from epochal.service.catalog.audit import AuditedCall, AuditFilter, AuditRepository, CallDetails, Caller
from epochal.service.catalog.database import Database
from epochal.service.catalog.events import EventEntry, EventFilter, EventRepository, record, write_recorded
from epochal.service.catalog.models import AuditEntry
from epochal.service.domain.events import ControlEvent, Topics
from epochal.service.domain.pages import PageRequest
from epochal.service.domain.setting_sections import Kept
from epochal.service.runtime.events.hub import Cursor, EventHub
from epochal.service.runtime.expiry import CatalogExpiry
from tests.kit.catalogs import new_sqlite_catalog
from tests.service.cursors import SEAL

if TYPE_CHECKING:
    from tests.service.conftest import Plane

NAMES = ("flights", "delays", "routes", "")
MOMENT = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return new_sqlite_catalog(tmp_path / "catalog.sqlite")
    return str(request.getfixturevalue("postgresql_catalog_url"))


@pytest.fixture
def databases(url: str) -> Iterator[Callable[[], Database]]:
    """Makes databases as separate processes would have them."""
    made: list[Database] = []

    def make() -> Database:
        made.append(Database(url))
        return made[-1]

    yield make
    for database in made:
        database.close()


@pytest.fixture
def database(databases: Callable[[], Database]) -> Database:
    return databases()


class NoHints:
    def open(self, listener_function: Callable[[Topics], None]) -> None: ...

    def send(self, topics: Topics) -> None: ...

    def close(self) -> None: ...


def event(application: str, content: Any, kind: Any = "operation", at: datetime | None = None) -> ControlEvent:
    return ControlEvent(kind, application or None, {"content": content}, at or datetime.now(UTC))


def write(database: Database, application: str, *contents: Any, at: datetime | None = None) -> None:
    with database.writing() as session:
        for content in contents:
            record(session, event(application, content, at=at))


def assign_positions(database: Database) -> None:
    with database.writing() as session:
        EventRepository(session).assign_positions()


def read(database: Database, position: int = 0, chosen: EventFilter | None = None) -> list[EventEntry]:
    assign_positions(database)
    with database.reading() as session:
        return EventRepository(session).after(position, chosen or EventFilter(), 10_000)[0]


def contents(entries: Sequence[EventEntry]) -> list[Any]:
    return [json.loads(entry.data)["content"] for entry in entries]


def test_reconnecting_listeners_receive_each_event_once_and_in_order(databases: Callable[[], Database]) -> None:
    """Three concurrent writers, some of whose transactions fail; listeners to all applications and to each, which
    reconnect to another process after each page, with the last received event only."""
    writers, readers = [databases() for _ in range(3)], [databases() for _ in range(2)]
    written: dict[str, int] = defaultdict(int)
    done = threading.Event()

    def work(database: Database, seed: int) -> None:
        choices = random.Random(seed)
        for turn in range(40):
            names = sorted(choices.sample(NAMES, choices.choice([1, 1, 1, 2])))
            with suppress(ZeroDivisionError), database.writing() as session:
                for name in reversed(names):
                    record(session, event(name, [seed, turn]))
                if choices.random() < 0.1:
                    raise ZeroDivisionError

    found: list[tuple[str, int]] = []
    of_one: dict[str, list[int]] = defaultdict(list)

    def listen() -> None:
        last: tuple[str, int] | None = None
        choices = random.Random(1)
        while True:
            is_last = done.is_set()
            database = choices.choice(readers)
            assign_positions(database)
            with database.reading() as session:
                repository = EventRepository(session)
                position = 0 if last is None else repository.position_of_all(*last)
                entries, _ = repository.after(position, EventFilter(), choices.randint(1, 20))
            found.extend((entry.application, entry.number) for entry in entries)
            last = found[-1] if found else None
            name = choices.choice(NAMES)
            with database.reading() as session:
                repository = EventRepository(session)
                position = repository.position(name, of_one[name][-1] if of_one[name] else 0)
                some, _ = repository.after(position, EventFilter(frozenset([name])), choices.randint(1, 20))
            of_one[name] += [entry.number for entry in some]
            if is_last and not entries:
                return

    threads = [threading.Thread(target=work, args=(database, seed)) for seed, database in enumerate(writers)]
    listener = threading.Thread(target=listen)
    for thread in (listener, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    listener.join()

    for entry in read(readers[0]):
        written[entry.application] += 1
    assert sum(written.values()) > 100
    for name, count in written.items():
        assert [number for application, number in found if application == name] == list(range(1, count + 1))
        assert of_one[name] == list(range(1, len(of_one[name]) + 1))
    orders: dict[tuple[str, int], list[int]] = defaultdict(list)
    for entry in read(readers[0]):
        seed, turn = json.loads(entry.data)["content"]
        orders[entry.application, seed].append(turn)
    assert all(turns == sorted(turns) for turns in orders.values())


def test_a_rolled_back_transaction_has_no_event(database: Database) -> None:
    with suppress(ZeroDivisionError), database.writing() as session:
        record(session, event("flights", "no"))
        raise ZeroDivisionError
    write(database, "flights", "yes")

    assert [(entry.number, json.loads(entry.data)["content"]) for entry in read(database)] == [(1, "yes")]


def test_events_of_a_late_commit_are_not_skipped(databases: Callable[[], Database]) -> None:
    """On PostgreSQL it may have written before a transaction whose events a listener has already received."""
    slow, quick, reader = databases(), databases(), databases()
    if slow.url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    written, release = threading.Event(), threading.Event()

    def late() -> None:
        with slow.writing() as session:
            record(session, event("slow", "late"))
            write_recorded(session)
            written.set()
            release.wait(10)

    thread = threading.Thread(target=late)
    thread.start()
    written.wait(10)
    write(quick, "quick", "early")
    seen = read(reader)
    release.set()
    thread.join()

    assert contents(seen) == ["early"]
    assert contents(read(reader, seen[-1].position)) == ["late"]


def test_a_stream_resumes_at_another_process(databases: Callable[[], Database]) -> None:
    first_hub, second_hub = EventHub(databases(), NoHints()), EventHub(databases(), NoHints())
    writer = databases()
    write(writer, "flights", "before")

    async def take(hub: EventHub, cursor: Cursor, chosen: EventFilter, count: int) -> list[EventEntry]:
        found = []
        async for entry in hub.stream(chosen, cursor, 10.0):
            if entry is not None:
                found.append(entry)
            if len(found) == count:
                return found
        return found

    async def follow() -> list[list[EventEntry]]:
        flights = EventFilter(frozenset(["flights"]))
        cursor, cursor_of_all = first_hub.begin("flights", None), first_hub.begin_all(None)
        for number in range(5):
            write(writer, "flights", number)
            write(writer, "delays", number)
        first, second = await asyncio.gather(
            take(first_hub, cursor, flights, 2), take(first_hub, cursor_of_all, EventFilter(), 3)
        )
        again = second_hub.begin("flights", first[-1].number)
        rest = second_hub.begin_all((second[-1].application, second[-1].number))
        live = asyncio.gather(take(second_hub, again, flights, 4), take(second_hub, rest, EventFilter(), 9))
        await asyncio.sleep(0)
        await asyncio.to_thread(write, writer, "flights", "last")
        await asyncio.to_thread(write, writer, "delays", "last")
        return [first, second, *await live]

    for hub in (first_hub, second_hub):
        hub.open()
    first, second, more, others = asyncio.run(follow())
    for hub in (first_hub, second_hub):
        hub.close()

    assert contents([*first, *more]) == [0, 1, 2, 3, 4, "last"]
    every = [(entry.application, json.loads(entry.data)["content"]) for entry in [*second, *others]]
    assert sorted(every, key=str) == sorted(
        [(name, content) for name in ("flights", "delays") for content in (0, 1, 2, 3, 4, "last")], key=str
    )
    for name in ("flights", "delays"):
        assert [content for application, content in every if application == name] == [0, 1, 2, 3, 4, "last"]


def test_reading_expired_events_is_an_error(database: Database) -> None:
    write(database, "flights", *range(10), at=MOMENT)
    write(database, "delays", *range(3), at=MOMENT + timedelta(days=2))
    assign_positions(database)
    with database.reading() as session:
        by_count = EventRepository(session).expirable(4, MOMENT)
        by_age = EventRepository(session).expirable(100, MOMENT + timedelta(days=3))
    assert (by_count, by_age) == ({"flights": 6}, {"flights": 9, "delays": 2})
    with database.writing() as session:
        assert [EventRepository(session).remove("flights", 6, 4) for _ in range(3)] == [4, 2, 0]

    with database.reading() as session:
        repository = EventRepository(session)
        assert [entry.number for entry in repository.after(0, EventFilter(), 100)[0]] == [7, 8, 9, 10, 1, 2, 3]
        for seen in (0, 5, 11):
            with pytest.raises(EventsExpired):
                repository.position("flights", seen)
        entries, _ = repository.after(repository.position("flights", 6), EventFilter(frozenset(["flights"])), 100)
        assert [entry.number for entry in entries] == [7, 8, 9, 10]
        with pytest.raises(EventsExpired):
            repository.position_of_all("flights", 5)
        after = repository.after(repository.position_of_all("flights", 9), EventFilter(), 100)[0]
        assert [(entry.application, entry.number) for entry in after] == [
            ("flights", 10),
            ("delays", 1),
            ("delays", 2),
            ("delays", 3),
        ]
        with pytest.raises(EventsExpired):
            repository.position_of_all("unknown", 1)


def test_listeners_of_expired_events_receive_410(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epochs(3)
    database = plane.control.database
    with database.reading() as session:
        newest = EventRepository(session).last("flights")
    with database.writing() as session:
        EventRepository(session).remove("flights", newest - 2, 100)
    client = Client(plane.settings.url, plane.admin_token)

    for path, id in (("/v1/applications/flights/events", "3"), ("/v1/events", "flights/3")):
        answer = plane.client.get(path, headers={"Last-Event-ID": id})
        assert (answer.status_code, answer.json()["type"]) == (410, "urn:epochal:problem:events-expired")
        assert plane.client.get(path, params={"after": id}).json()["type"] == answer.json()["type"]
    with client:
        with pytest.raises(EventsExpired, match=f"up to number {newest - 2} have expired"):
            next(client.application("flights").events("3"))
        assert next(client.application("flights").events(str(newest - 2))).id == str(newest - 1)


def test_events_and_audit_entries_expire_by_age_and_number(database: Database) -> None:
    old = datetime.now(UTC) - timedelta(days=10)
    write(database, "flights", *range(2_500))
    write(database, "delays", *range(5), at=old)
    with database.writing() as session:
        audit = AuditRepository(session)
        for request in ("old", "young"):
            details = CallDetails(Caller(None, None, None), "POST /v1/x", "x", 200, request)
            audit.settle(AuditedCall(details), 200)
        session.flush()
        session.execute(update(AuditEntry).where(AuditEntry.request == "old").values(at=old))
    expiry = CatalogExpiry(database, Kept(events=100, events_days=7, audit_days=5))

    while expiry.expire_events():
        pass
    while expiry.expire_audit():
        pass

    assert sorted(entry.number for entry in read(database)) == [5, *range(2_401, 2_501)]
    with database.reading() as session:
        left = AuditRepository(session).page(PageRequest(10, None, SEAL), "default", AuditFilter())
        assert [row.request for row in left.rows] == ["young"]
