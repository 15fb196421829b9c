"""Events of kind ``load``, which are not stored, and of kind ``transaction``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.client import Client
from epochal.contracts.catalog import DriverStatus, Failure, OpenTransaction
from epochal.contracts.measurements import DriverReport, Load, Moment, SourceReport
from epochal.service.catalog.events import EventFilter, EventRepository
from epochal.service.runtime.events import loads
from epochal.service.runtime.events.loads import LOAD_SECONDS, LoadChanges, LoadFeed, differs
from epochal.wire.applications import ApplicationLag, SourceLag
from tests.service.conftest import free_port

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane

SINCE = datetime(2026, 5, 1, 12, tzinfo=UTC)
LOADS = EventFilter(kinds=frozenset(["load"]))


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@contextmanager
def followed(plane: Plane) -> Iterator[tuple[LoadFeed, Clock]]:
    clock = Clock()
    feed = LoadFeed(plane.control.database, clock)
    with feed.following(LOADS):
        yield feed, clock


def report(driver: Driver, number: int, **moment: Any) -> None:
    driver.catalog.report(DriverReport(number=number, moment=Moment(**moment)))


def rate(rows: int) -> Load:
    return Load(version=1, parallelism=1, epoch=3, seconds=10, rows_read={"in": rows})


def taken(feed: LoadFeed, after: int = 0) -> list[dict[str, Any]]:
    feed.look()
    return [json.loads(entry.data) for entry in feed.after(after, LOADS)]


def events(plane: Plane, count: int, **parameters: Any) -> list[tuple[str | None, str, dict[str, Any]]]:
    """The next events of the project: id, kind, data."""
    found: list[tuple[str | None, str, dict[str, Any]]] = []
    fields: dict[str, str] = {}
    with plane.client.stream("GET", "/v1/events", params=parameters) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            fields[name] = value
            if not line:
                if "data" in fields:
                    found.append((fields.get("id"), fields["event"], json.loads(fields["data"])))
                fields = {}
                if len(found) == count:
                    break
    return found


def test_a_stream_begins_with_the_current_loads_and_ends_with_those_that_changed(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "LOAD_SECONDS", 0.0)
    monkeypatch.setattr(loads, "LOOK_SECONDS", 0.0)
    drivers = {}
    for name in ("flights", "other"):
        plane.application(name)
        drivers[name] = plane.driver(name)
        report(drivers[name], 1, sources={"in": SourceReport(records=7)}, load=rate(50))
    with Client(plane.settings.url, token=plane.admin_token) as client:
        expected = [item.model_dump(mode="json") for item in client.applications.lags()]
        stream = client.events(kinds=["load"])
        first = [next(stream) for _ in range(2)]
        report(drivers["other"], 2, sources={"in": SourceReport(records=7)}, load=rate(50))
        report(drivers["flights"], 2, sources={"in": SourceReport(records=9)}, load=rate(50))
        third = next(stream)
        again = next(client.application("flights").events(kinds=["load"]))
    shown = [{name: event.data[name] for name in expected[0]} for event in first]
    assert sorted(shown, key=lambda lag: str(lag["application"])) == expected
    assert {event.id for event in (*first, third, again)} == {None}
    assert (third.data["application"], third.data["sources"]["in"]["records"]) == ("flights", 9)
    assert {**again.data, "at": None} == {**third.data, "at": None}


def test_only_streams_that_select_loads_have_them(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    report(driver, 1, load=rate(50))
    driver.running()
    driver.epoch()
    with plane.control.database.reading() as session:
        last = EventRepository(session).last("flights")
    found = events(plane, 3, kind=["load", "epoch"], after=f"flights/{last - 3}")
    assert [(id, kind) for id, kind, _ in found] == [(f"flights/{last - each}", "epoch") for each in (2, 1, 0)]
    id, kind, _ = events(plane, 4, kind=["load", "epoch"], after=f"flights/{last - 3}")[-1]
    assert (id, kind) == (None, "load")
    with plane.control.database.reading() as session:
        repository = EventRepository(session)
        assert repository.last("flights") == last
        assert "load" not in {entry.kind for entry in repository.after(0, EventFilter(), 100)[0]}
    plane.application("other")
    other = events(plane, 1, kind=["load", "execution"], application="other", after=f"flights/{last}")
    assert [(kind, data["application"]) for _, kind, data in other] == [("execution", "other")]


def test_each_control_plane_of_a_catalog_has_the_loads(plane: Plane, serve: Callable[..., Any]) -> None:
    plane.application()
    driver = plane.driver()
    report(driver, 1, load=rate(50))
    second = plane.settings.model_copy(update={"port": free_port()})
    with serve(second), Client(second.url, token=plane.admin_token) as client:
        stream = client.application("flights").events(kinds=["load", "transaction"])
        first = next(stream)
        report(driver, 2, load=rate(50), blocked_sinks={"out": SINCE})
        blocked = next(stream)
    assert (first.kind, first.id, first.data["rows_per_second"]) == ("load", None, 5.0)
    assert (blocked.kind, blocked.data["state"]) == ("transaction", "blocked") and blocked.id is not None


def test_a_load_is_sent_again_if_it_differs_and_the_last_one_is_old(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    with followed(plane) as (feed, clock):
        assert taken(feed) == []
        report(driver, 1, load=rate(1000))
        clock.seconds += 1
        (first,) = taken(feed)
        assert (first["rows_per_second"], first["application"], first["project"]) == (100.0, "flights", "default")
        (position,) = (entry.position for entry in feed.after(0, LOADS))
        report(driver, 2, load=rate(2000))
        clock.seconds += LOAD_SECONDS - 1
        assert taken(feed, position) == []
        clock.seconds += 1
        assert [lag["rows_per_second"] for lag in taken(feed, position)] == [200.0]
        position += 1
        for number, rows in ((3, 2000), (4, 2010)):
            report(driver, number, load=rate(rows))
            clock.seconds += LOAD_SECONDS
            assert taken(feed, position) == []
        report(driver, 5, load=rate(2010), blocked_sinks={"out": SINCE})
        clock.seconds += 1
        (blocked,) = taken(feed, position)
        assert [datetime.fromisoformat(at) for at in blocked["blocked_sinks"].values()] == [SINCE]
        assert len(feed.after(0, LOADS)) == 1
        driver.catalog.finish(None)
        clock.seconds += LOAD_SECONDS
        (ended,) = taken(feed, position + 1)
        assert (ended["reported_at"], ended["rows_per_second"], ended["blocked_sinks"]) == (None, None, {})


def test_loads_are_read_only_while_a_stream_selects_them(plane: Plane) -> None:
    plane.application()
    report(plane.driver(), 1, load=rate(1000))
    clock = Clock()
    feed = LoadFeed(plane.control.database, clock)
    with feed.following(EventFilter()):
        assert not feed.look()
    with feed.following(LOADS):
        assert len(taken(feed)) == 1
        assert feed.after(0, EventFilter()) == ()
        assert feed.after(0, EventFilter(frozenset(["other"]), LOADS.kinds)) == []
        assert feed.after(0, EventFilter(None, LOADS.kinds, "another")) == []
    assert not feed.look() and feed.after(0, LOADS) == []
    clock.seconds += 1
    with feed.following(LOADS):
        assert len(taken(feed)) == 1


Numbers = st.none() | st.sampled_from([0.0, 1.0, 100.0, 100.5, 101.5, 5000.0])
Lags = st.builds(
    lambda rows, seconds, reachable, blocked, away: ApplicationLag(
        application="flights",
        reported_at=SINCE,
        sources={"in": SourceLag(records=None, files=None, seconds=seconds, reachable=reachable)},
        rows_per_second=rows,
        blocked_sinks={"out": SINCE} if blocked else {},
        store_away_since=SINCE if away else None,
    ),
    Numbers,
    Numbers,
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(st.tuples(st.none() | Lags, st.sampled_from([1.0, 5.0, 9.0])), min_size=1, max_size=30))
def test_loads_are_limited_in_rate_and_the_latest_one_is_always_sent(
    steps: list[tuple[ApplicationLag | None, float]],
) -> None:
    """``None``: the application does not run."""
    changes, moment = LoadChanges(), 0.0
    ended = ApplicationLag(application="flights", reported_at=None, sources={})
    sent: list[tuple[float, ApplicationLag]] = []

    def look(lag: ApplicationLag | None) -> None:
        reported = None if lag is None else lag.reported_at
        reports: Mapping[str, Any] = {} if reported is None else {"id": ("flights", reported)}
        for id, name in changes.due(reports, moment).items():
            if changes.changed(id, name, lag or ended, moment):
                sent.append((moment, lag or ended))

    for number, (lag, seconds) in enumerate(steps):
        current = None if lag is None else lag.model_copy(update={"reported_at": SINCE + timedelta(seconds=number)})
        look(current)
        moment += seconds
    moment += LOAD_SECONDS
    look(current)
    assert all(later - earlier >= LOAD_SECONDS for (earlier, _), (later, _) in pairwise(sent))
    assert all(differs(before, after) for (_, before), (_, after) in pairwise(sent))
    if sent or current is not None:
        assert not differs(sent[-1][1], current or ended)
    moment += 100
    look(None)
    moment += 100
    assert changes.due({}, moment) == {}
    assert changes.due({"id": ("flights", SINCE)}, moment) == {"id": "flights"}


def test_each_change_of_the_blocked_sinks_is_an_event(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.running()
    later = SINCE + timedelta(minutes=1)
    out = {"out": SINCE}
    for number, blocked in enumerate(({}, out, out, {"out": later, "log": SINCE}, {"log": SINCE}), 1):
        report(driver, number, blocked_sinks=blocked)
    driver.catalog.finish(Failure(type="sink-error", message="away"))
    successor = plane.driver()
    report(successor, 1)
    found = events(plane, 5, kind="transaction", after="flights/0")
    assert None not in {id for id, _, _ in found}
    changes = [(data["sink"], data["state"], data["blocked_since"]) for _, _, data in found]
    assert [(sink, state, at and datetime.fromisoformat(at)) for sink, state, at in changes] == [
        ("out", "blocked", SINCE),
        ("out", "blocked", later),
        ("log", "blocked", SINCE),
        ("out", "free", None),
        ("log", "free", None),
    ]
    assert {data["application"] for _, _, data in found} == {"flights"}


def test_a_decision_about_a_transaction_is_an_event(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epoch(commit=False)
    waiting = OpenTransaction(sink="out", epoch=1, rows=7, error="away", since=SINCE)
    status = DriverStatus(phase="waiting", transactions=(waiting,))
    driver.catalog.heartbeat(status)
    plane.post("/v1/applications/flights/transactions/out/1/abort", message="the topic was dropped")
    (directive,) = driver.catalog.heartbeat(status)
    driver.catalog.complete(directive.id, None)
    ((_, _, data),) = events(plane, 1, kind="transaction", after="flights/0")
    assert {**data, "at": None} == {
        "application": "flights",
        "project": "default",
        "at": None,
        "state": "decided",
        "sink": "out",
        "epoch": 1,
        "action": "abort",
        "by": "admin",
        "message": "the topic was dropped",
    }
