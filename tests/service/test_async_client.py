"""The asynchronous client returns the same answers as the blocking one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from epochal.client import AsyncClient, Client
from epochal.client.exchanges import ATTEMPTS
from epochal.client.state import AsyncState, State
from epochal.errors import CatalogUnavailable, EpochalError
from tests.service.end_to_end.blocks import blocks_of
from tests.service.lookups import DELAYS, VISITS, StateDriver, get, place, route, table
from tests.service.scripted_answers import Script, answer, hang_up, problem, scripted

if TYPE_CHECKING:
    from tests.service.conftest import Plane

LAX, SFO = route("JFK", "LAX"), route("JFK", "SFO")
CALLS: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    ("delays", "get", ("JFK", "LAX"), {}),
    ("delays", "get", ("JFK", "LAX"), {"epoch": 1}),
    ("delays", "get", ("a/b", ".."), {"isolation": "read_uncommitted"}),
    ("delays", "get", ("JFK", "LAX"), {"min_epoch": 9, "wait_seconds": 0}),
    ("delays", "get", ("JFK", "none"), {}),
    ("delays", "get", ("JFK",), {}),
    ("delays", "get", ("\0", "LAX"), {}),
    ("nothing", "get", ("JFK",), {}),
    ("visits.places", "get", ("N1",), {}),
    ("delays", "lookup", ([LAX, SFO, LAX],), {}),
    ("delays", "lookup", ([LAX],), {"epoch": 1}),
    ("delays", "lookup", ([{"origin": "JFK"}],), {}),
    ("delays", "lookup_table", ([LAX, SFO],), {"min_epoch": 2}),
    ("delays", "lookup_table", ([{"origin": 1}],), {}),
    ("delays", "lookup_frame", ([LAX, SFO],), {"epoch": 1}),
    ("delays", "scan", (), {}),
    ("delays", "scan", ("JFK",), {"limit": 1, "epoch": 1}),
    ("delays", "scan", ("J",), {"begins_with": True}),
    ("delays", "scan", (), {"cursor": "x"}),
    ("delays", "scan_table", ("JFK",), {"limit": 1}),
    ("visits.places", "scan_frame", (), {"limit": 1}),
    ("delays", "history", ("JFK", "LAX"), {"limit": 1}),
    ("delays", "history", ("JFK", "LAX"), {"limit": None}),
    ("delays", "blame", ("JFK", "LAX"), {}),
    ("delays", "blame", ("JFK", "none"), {}),
]
"""State table, method, arguments, options."""


@pytest.fixture
def populated(plane: Plane) -> Plane:
    plane.application()
    driver = StateDriver(plane)
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 2.5), route("JFK", "SFO", 7, None), route("a/b", "..", 3, 0.5)]))
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, 2.5)]), (VISITS, [place("N1", "JFK", 4), place("N1", "LAX", 5)]))
    get(plane, "JFK,LAX", min_epoch=2)
    return plane


def comparable(found: Any) -> Any:
    if isinstance(found, pa.Table):
        return found.schema.metadata, found.schema.to_string(), found.to_pylist()
    if hasattr(found, "to_dict"):  # a frame
        return [str(type) for type in found.dtypes], found.astype(object).to_dict("records").__repr__()
    return found


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return comparable(call())
    except EpochalError as error:
        return type(error), error.message


def test_both_clients_return_equal_answers(populated: Plane) -> None:
    async def requested() -> list[Any]:
        async with AsyncClient(populated.settings.url, populated.admin_token) as client:
            assert await client.ready() and client.url == populated.settings.url

            async def one(name: str, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
                state = client.application("flights").state(name)
                try:
                    return comparable(await getattr(state, method)(*arguments, **options))
                except EpochalError as error:
                    return type(error), error.message

            found: list[Any] = await asyncio.gather(*(one(*call) for call in CALLS))
            delays = client.application("flights").state("delays")
            found.append([row async for row in delays.scan_all("JFK", limit=1)])
            found.append([comparable(page) async for page in delays.scan_tables(limit=2)])
            return found

    with Client(populated.settings.url, populated.admin_token) as client:
        application = client.application("flights")
        expected = [
            outcome(partial(getattr(application.state(name), method), *arguments, **options))
            for name, method, arguments, options in CALLS
        ]
        delays = client.application("flights").state("delays")
        expected.append(list(delays.scan_all("JFK", limit=1)))
        expected.append([comparable(page) for page in delays.scan_tables(limit=2)])
    found = asyncio.run(requested())
    for call, mine, theirs in zip([*CALLS, "scan_all", "scan_tables"], found, expected, strict=True):
        assert mine == theirs, call
    assert len(found[-1]) == 2 and len(found[-2]) == 2


def test_calls_wait_for_a_free_connection(populated: Plane) -> None:
    async def requested() -> list[Any]:
        async with AsyncClient(
            populated.settings.url, populated.admin_token, timeout_seconds=60, connections=2
        ) as client:
            delays = client.application("flights").state("delays")
            found = await asyncio.gather(*(delays.get("JFK", "LAX") for _ in range(50)))
            return [each.value for each in found]

    assert asyncio.run(requested()) == [{"flights": 2, "worst": 2.5}] * 50


def test_both_clients_have_the_same_methods() -> None:
    def calls(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert calls(State) == calls(AsyncState) == {call for _, call, _, _ in CALLS} | {"scan_all", "scan_tables"}
    assert State.get.__doc__ == AsyncState.get.__doc__ and "Look up one key" in str(State.get.__doc__)


def test_the_example_of_the_quickstart_runs(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = table("spent", DELAYS.kind, "customer bigint", "orders bigint, total double")
    plane.application("orders")
    driver = StateDriver(plane, "orders", tables=(spent,))
    customers = [{"customer": number, "orders": number, "total": 1.5} for number in range(1, 50)]
    driver.epoch((spent, customers))
    plane.get("/v1/applications/orders/state/spent/keys/42", min_epoch=1)
    monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", plane.admin_token)
    (client,) = (block for block in blocks_of("docs/start/quickstart.md", "python") if "Client" in block.text)
    names: dict[str, Any] = {}
    exec(client.code, names)  # type: ignore[call-overload]
    assert names["answer"].value["orders"] == 42
    assert [answer.value["orders"] for answer in names["answers"]] == [1, 2, 3]


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted() as script:
        yield script


VALUE = {"table": "t", "key": {"k": 1}, "value": {"v": 1}, "branch": "b", "epoch": 1, "isolation": "read_committed"}
TOO_MANY = problem(429, "too-many-requests", "Wait.", Retry_After="0")
SCRIPTS: list[list[Any]] = [
    [answer(200, VALUE)],
    [hang_up, problem(503, "catalog-unavailable", "Busy.", Retry_After="2"), answer(200, VALUE)],
    [*[TOO_MANY] * (ATTEMPTS + 1), answer(200, VALUE)],
    [problem(503, "catalog-unavailable", "Busy.")] * ATTEMPTS,
    [hang_up] * ATTEMPTS,
    [problem(404, "not-found", "No table.")],
    [answer(200, "<html>")],
]


@pytest.mark.parametrize("steps", SCRIPTS, ids=range(len(SCRIPTS)))
def test_both_clients_retry_alike(script: Script, steps: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def requested() -> Any:
        async with AsyncClient(script.url, "secret") as client:
            return await client.application("a").state("t").get(1)

    def blocking() -> Any:
        with Client(script.url, "secret") as client:
            return client.application("a").state("t").get(1)

    seen = []
    for call in (blocking, lambda: asyncio.run(requested())):
        script.then(*steps)
        with monkeypatch.context() as patched:
            patched.setattr("epochal.wire.http.time", type("Clock", (), {"sleep": staticmethod(pauses.append)}))
            patched.setattr("epochal.wire.http.asyncio", type("Loop", (), {"sleep": staticmethod(pause)}))
            found = outcome(call)
        requests = [(each.method, each.path, each.headers["Authorization"]) for each in script.requests]
        ids = len({each.headers["X-Request-Id"] for each in script.requests})
        if found == (CatalogUnavailable, found[1] if isinstance(found, tuple) else None):
            found = CatalogUnavailable  # the message for a broken connection depends on the operating system
        seen.append((found, list(pauses), requests, ids))
        pauses.clear()
        script.requests.clear()
        assert not script.steps
    assert seen[0] == seen[1]
