"""The control plane on PostgreSQL: a second process, real concurrency, and another SQL dialect."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import make_url, text

from epochal.contracts.catalog import DriverStatus
from epochal.errors import CatalogUnavailable, EpochalError, Fenced
from epochal.service.catalog import engines
from epochal.service.catalog.database import Database
from epochal.service.domain.settings import Settings
from tests.kit.waiting import eventually

# These tests run on PostgreSQL as well.
from tests.service.conftest import free_port
from tests.service.test_idempotency import (  # noqa: F401
    test_a_key_is_valid_for_one_request_of_one_token,
    test_a_repeated_call_is_answered_without_effect,
    test_one_of_several_concurrent_calls_with_a_key_takes_effect,
)
from tests.service.test_revisions import test_revision_changes_with_each_change_but_not_with_epochs  # noqa: F401
from tests.service.test_webhooks import (  # noqa: F401
    test_epochs_and_failures_are_delivered_in_order_and_signed,
    test_failed_delivery_is_repeated_and_redirects_are_not_followed,
    test_oldest_deliveries_over_the_limit_are_dropped_and_counted,
    test_restart_loses_no_event,
    test_webhooks_are_listed_and_deleted_without_their_secrets,
)
from tests.service.webhook_receivers import Receiver, add_webhook, status_of
from tests.service.webhook_receivers import _no_pauses as _no_pauses

if TYPE_CHECKING:
    from tests.service.conftest import Plane

pytestmark = pytest.mark.server


@pytest.fixture
def settings(settings: Settings, postgresql_catalog_url: str) -> Settings:
    return settings.model_copy(update={"database": postgresql_catalog_url, "webhooks_local": True})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def local(settings: Settings) -> Settings:
    return settings


def test_application_runs_forks_and_stops_on_postgresql(plane: Plane) -> None:
    plane.application(configuration={"retained_epochs": 3})
    driver = plane.driver()
    driver.running()
    driver.epochs(5)
    making = plane.post("/v1/applications/flights/savepoints", name="five")
    (directive,) = driver.running()
    driver.catalog.complete(directive.id, driver.head)
    fork = plane.post("/v1/applications/flights/fork", 201, name="copy", savepoint="five", shadow=True)
    plane.post("/v1/applications/flights/stop", savepoint="end")
    driver.stop()
    child = plane.driver("copy")
    child.running()
    child.epochs(2)

    assert plane.get(f"/v1/operations/{making['id']}")["state"] == "succeeded"
    assert fork["parent"]["epoch"] == 5
    assert [item["epoch"] for item in plane.get("/v1/applications/copy/epochs", limit=3)["items"]] == [7, 6, 5]
    assert plane.client.get("/v1/applications/flights/snapshots/2").status_code == 410
    nodes: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        page = plane.get("/v1/applications/copy/lineage", limit=2, **cursor)
        nodes += page["nodes"]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert nodes == plane.get("/v1/applications/flights/lineage")["nodes"]
    assert [node["epoch"] for node in nodes] == [7, 6, 5, 4, 3, 2, 1]
    assert [item["name"] for item in plane.get("/v1/applications/flights/savepoints")["items"]] == ["end", "five"]
    metrics = plane.client.get("/metrics").text
    assert 'epochal_epochs{state="committed"} 7.0' in metrics
    assert 'epochal_committed_epochs_total{application="flights"} 5.0' in metrics
    assert 'epochal_committed_epochs_total{application="copy"} 2.0' in metrics
    assert "epochal_catalog_synchronous_replication 0.0" in metrics
    plane.post("/v1/applications/flights/start", savepoint="five")
    assert plane.driver().point.branch == fork["parent"]["branch"]


def test_null_characters_are_refused(plane: Plane) -> None:
    plane.application(start=False)
    assert plane.client.get("/v1/applications/a%00b").status_code == 404
    assert plane.client.get("/v1/operations/a%00b").status_code == 404
    assert plane.client.get("/v1/operations", params={"application": "a\0b"}).status_code == 422
    message = {"name": "copy", "shadow": True, "message": "a\0b"}
    assert plane.client.post("/v1/applications/flights/fork", json=message).status_code == 422


@pytest.mark.alternating(2)
def test_driver_and_user_do_not_deadlock(plane: Plane) -> None:
    """Heartbeats, epochs, savepoints and a stop run concurrently without unexpected errors."""
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epoch()
    stopped = threading.Event()
    failures: list[EpochalError] = []

    def beat() -> None:
        try:
            while not stopped.is_set():
                for directive in driver.catalog.heartbeat(DriverStatus(phase="running")):
                    if directive.kind == "savepoint":
                        driver.catalog.complete(directive.id, driver.head)
        except EpochalError as error:
            failures.append(error)

    beating = [threading.Thread(target=beat) for _ in range(2)]
    for thread in beating:
        thread.start()
    for number in range(10):
        driver.epoch()
        plane.post("/v1/applications/flights/savepoints", name=f"s{number}")
    plane.post("/v1/applications/flights/stop")
    stopped.set()
    for thread in beating:
        thread.join()
    driver.stop()

    assert failures == []
    states = {item["kind"]: item["state"] for item in plane.get("/v1/operations")["items"]}
    assert states == {"start": "succeeded", "savepoint": "succeeded", "stop": "succeeded"}


def four_concurrent_posts(plane: Plane, path: str, **body: Any) -> list[httpx.Response]:
    def post(_: int) -> httpx.Response:
        client = plane.as_bearer(plane.settings.admin_token_file.read_text().strip())
        return client.post(path, timeout=30, **body)

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(post, range(4)))


def test_concurrent_starts_succeed_once(plane: Plane) -> None:
    plane.application(start=False)
    answers = four_concurrent_posts(plane, "/v1/applications/flights/start")
    assert sorted(answer.status_code for answer in answers) == [202, 409, 409, 409]
    assert len(plane.get("/v1/applications/flights/executions")["items"]) == 1


def test_concurrent_applications_with_one_name_are_created_once(plane: Plane) -> None:
    body = {"name": "flights", "artifact": plane.artifact(), "parameters": {"out": "/x"}, "start": False}
    answers = four_concurrent_posts(plane, "/v1/applications", json=body)
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
    problems = {answer.json()["type"] for answer in answers if answer.status_code == 409}
    assert problems == {"urn:epochal:problem:name-taken"}


@pytest.mark.alternating(2)
def test_two_control_planes_deliver_each_event_once_and_in_order(
    plane: Plane, serve: Callable[..., Any], tmp_path: Path, receiver: Receiver
) -> None:
    other = plane.settings.model_copy(
        update={"data": tmp_path / "other", "port": free_port(), "store": plane.settings.store_url}
    )
    with serve(other):
        id = add_webhook(plane, receiver, kinds=["epoch.committed"])
        plane.application()
        plane.driver().epochs(30)
        eventually(lambda: len(receiver.accepted) >= 30 and status_of(plane, id)["waiting"] == 0)
    assert [event["data"]["epoch"] for event in receiver.accepted] == list(range(1, 31))


def test_two_control_planes_share_one_catalog(plane: Plane, serve: Callable[..., Any], tmp_path: Path) -> None:
    """A driver that was started through one continues through the other. Tokens are valid at both."""
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epoch()
    other = plane.settings.model_copy(
        update={"data": tmp_path / "other", "port": free_port(), "store": plane.settings.store_url}
    )
    with serve(other) as (_, token):
        with httpx.Client(base_url=other.url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
            assert client.get("/v1/applications/flights/snapshots/1").json()["epoch"] == 1
            successor = client.get("/v1/tokens").json()["items"]
            assert len(successor) == 2
        plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", None)
        with pytest.raises(Fenced):
            driver.epoch()


def test_silent_database_is_detected_within_the_connect_timeout(postgresql_url: str) -> None:
    """A timeout in the URL takes precedence."""
    longer = make_url(postgresql_url).update_query_dict({"connect_timeout": "7"})
    for url, seconds in ((postgresql_url, 5), (longer.render_as_string(hide_password=False), 7)):
        database = Database(url)
        with database.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            parameters = driver.info.get_parameters()
        database.close()
        assert int(parameters["connect_timeout"]) == seconds
        assert parameters["tcp_user_timeout"] == "10000" and parameters["keepalives_idle"] == "5"


def test_connections_closed_by_the_server_are_replaced(
    postgresql_catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a pause the connection is checked; otherwise the first call fails, and closes all connections of the
    pool."""
    drivers, others = Database(postgresql_catalog_url, 4, urgent=True), Database(postgresql_catalog_url, 4)

    theirs = "pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"

    def end_all() -> None:
        with drivers.reading() as one, drivers.reading() as other:
            one.execute(text("SELECT 1")), other.execute(text("SELECT 1"))
        # Each query needs its own transaction: within one, PostgreSQL returns the same activity.
        eventually(lambda: _scalar(others, f"SELECT count(pg_terminate_backend(pid)) FROM {theirs}") == 0)

    end_all()
    with pytest.raises(CatalogUnavailable):
        _scalar(drivers, "SELECT 1")
    assert _scalar(drivers, "SELECT 1") == 1
    monkeypatch.setattr(engines, "TRUSTED_SECONDS", 0.0)
    end_all()
    assert _scalar(drivers, "SELECT 1") == 1
    drivers.close()
    others.close()


def _scalar(database: Database, query: str) -> Any:
    with database.reading() as session:
        return session.scalar(text(query))
