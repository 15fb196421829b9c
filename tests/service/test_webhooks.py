"""Webhooks, with a real receiver: what happens is delivered, signed, in order, again after failures and restarts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from epochal.client.webhooks import verify
from epochal.contracts.catalog import Failure
from epochal.errors import Unauthenticated
from epochal.service.catalog.models import Webhook, WebhookDelivery
from epochal.service.catalog.webhooks import WebhookRepository
from epochal.service.domain.settings import Settings
from epochal.service.runtime import webhooks as deliveries
from tests.service.conftest import Plane, StandInSupervisor, free_port, http_client, serving
from tests.service.problems import check_problem
from tests.waiting import eventually

SECRET = "a secret of the receiver".replace(" ", "-")
FAILURE = Failure(type="author-error", message="division by zero")
KINDS = ["epoch.committed", "epoch.aborted", "attempt.failed", "application.failed"]


class Receiver:
    """Answers with the statuses of ``answers``, one each, then with 204; ``taken`` are the events it said 204 to."""

    def __init__(self, port: int = 0) -> None:
        receiver = self
        self.answers: list[int] = []
        self.asked: list[dict[str, Any]] = []
        self.taken: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                verify(SECRET, self.headers["Epochal-Signature"], body)
                event = json.loads(body)
                assert (self.headers["Epochal-Event-Id"], self.headers["Epochal-Event"]) == (event["id"], event["kind"])
                receiver.asked.append(event)
                status = receiver.answers.pop(0) if receiver.answers else 204
                if status == 204:
                    receiver.taken.append(event)
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?a=b"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(deliveries, "LONGEST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(deliveries, "ROUND_SECONDS", 0.02)


@contextmanager
def running(settings: Settings) -> Iterator[Plane]:
    supervisor = StandInSupervisor()
    with serving(settings, supervisor) as (control, token), http_client(settings, token) as client:
        yield Plane(control, client, settings, supervisor, [])


@pytest.fixture
def local(tmp_path: Path) -> Settings:
    """A control plane that may deliver to this machine."""
    return Settings(data=tmp_path / "data", port=free_port(), webhooks_local=True)


@pytest.fixture
def plane(local: Settings) -> Iterator[Plane]:
    with running(local) as plane:
        yield plane


def hook(plane: Plane, receiver: Receiver, **more: Any) -> str:
    body = {"url": receiver.url, "kinds": KINDS, "secret": SECRET} | more
    return str(plane.post("/v1/webhooks", 201, **body)["id"])


def seen(plane: Plane, id: str) -> Any:
    return plane.get(f"/v1/webhooks/{id}")


def test_epochs_and_failures_are_delivered_in_order_and_signed(plane: Plane, receiver: Receiver) -> None:
    plane.application()
    plane.application("other")
    driver, other = plane.driver(), plane.driver("other")
    driver.running()
    driver.epoch()
    id = hook(plane, receiver, applications=["flights"])
    commits = Receiver()
    hook(plane, commits, kinds=["epoch.committed"])

    driver.epochs(2)
    other.epoch()
    driver.catalog.open_epoch(4, driver.head_key)
    driver.catalog.abort_epoch(4, FAILURE)
    driver.catalog.finish(FAILURE)
    plane.control.ledger.execution_ended(driver.execution, "failed", FAILURE)

    eventually(lambda: len(receiver.taken) == 5 and len(commits.taken) == 3)
    branch = driver.point.branch
    assert [(event["id"], event["kind"]) for event in receiver.taken] == [
        (f"{branch}/2/committed", "epoch.committed"),
        (f"{branch}/3/committed", "epoch.committed"),
        (f"{branch}/4/aborted", "epoch.aborted"),
        (f"{driver.execution}/1/failed", "attempt.failed"),
        (f"{driver.execution}/failed", "application.failed"),
    ]
    assert {event["application"] for event in receiver.taken} == {"flights"}
    assert receiver.taken[0]["data"]["rows_in"] == 2 and receiver.taken[0]["data"]["state"] == "committed"
    assert all(event["data"]["failure"]["message"] == "division by zero" for event in receiver.taken[2:])
    assert [event["application"] for event in commits.taken] == ["flights", "flights", "other"]
    eventually(lambda: bool(seen(plane, id)["waiting"] == 0 and seen(plane, id)["delivered_at"]))
    commits.close()


def test_what_is_not_taken_is_delivered_again_and_redirects_are_not_followed(plane: Plane, receiver: Receiver) -> None:
    receiver.answers = [500, 302, 204, 503]
    id = hook(plane, receiver)
    plane.application()
    plane.driver().epochs(2)

    eventually(lambda: len(receiver.taken) == 2)
    assert [event["data"]["epoch"] for event in receiver.asked] == [1, 1, 1, 2, 2]
    assert len({event["id"] for event in receiver.asked}) == 2
    eventually(lambda: bool(seen(plane, id)["state"] == "active"))
    assert seen(plane, id)["last_error"] is None


def test_a_restart_loses_nothing(local: Settings) -> None:
    receiver = Receiver()
    receiver.close()
    with running(local) as plane:
        id = hook(plane, receiver)
        plane.application()
        plane.driver().epochs(3)
        eventually(lambda: bool(seen(plane, id)["state"] == "failing"))
        assert seen(plane, id)["waiting"] == 3 and "Connect" in seen(plane, id)["last_error"]
    again = Receiver(int(receiver.url.split(":")[2].partition("/")[0]))
    try:
        with running(local):
            eventually(lambda: len(again.taken) == 3)
    finally:
        again.close()
    assert [event["data"]["epoch"] for event in again.taken] == [1, 2, 3]


def test_nothing_is_delivered_to_this_machine_unless_that_is_allowed(local: Settings, receiver: Receiver) -> None:
    with running(local) as plane:
        id = hook(plane, receiver)
    with running(local.model_copy(update={"webhooks_local": False})) as plane:
        plane.application()
        plane.driver().epoch()
        eventually(lambda: bool(seen(plane, id)["state"] == "failing"))
        assert "127.0.0.1 is an address of the control plane's own machine" in seen(plane, id)["last_error"]
        hosts = (
            "127.0.0.1",
            "localhost:80",
            "a.localhost",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "169.254.169.254",
            "0.0.0.0",
        )
        for host in hosts:
            answer = plane.client.post("/v1/webhooks", json={"url": f"http://{host}/", "kinds": KINDS})
            check_problem(answer, 422, "invalid-input")
        for url in ("ftp://example.com", "https://", "example.com"):
            answer = plane.client.post("/v1/webhooks", json={"url": url, "kinds": KINDS})
            check_problem(answer, 422, "invalid-request")
        answer = plane.client.post("/v1/webhooks", json={"url": "https://me:word@example.com", "kinds": KINDS})
        check_problem(answer, 422, "invalid-input")
    assert receiver.asked == []


@pytest.mark.parametrize("status", [410, 500])
def test_what_fails_for_too_long_is_disabled_and_says_so(
    plane: Plane, receiver: Receiver, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if status == 500:
        monkeypatch.setattr(deliveries, "DISABLED_AFTER", timedelta(seconds=-1))
    receiver.answers = [status]
    id = hook(plane, receiver)
    plane.application()
    driver = plane.driver()
    driver.epoch()
    eventually(lambda: bool(seen(plane, id)["state"] == "disabled"))
    driver.epoch()
    now = seen(plane, id)
    assert (now["waiting"], now["dropped"], now["last_error"]) == (0, 1, f"the receiver answered {status}")
    assert receiver.taken == []


def test_the_oldest_of_too_many_are_given_up_and_counted(plane: Plane, receiver: Receiver) -> None:
    id = hook(plane, receiver, kinds=["application.failed"])
    with plane.control.database.writing() as session:
        session.get_one(Webhook, id).disabled_at = session.get_one(Webhook, id).created_at
        for number in range(5):
            for webhook in (id, "deleted"):
                session.add(WebhookDelivery(webhook=webhook, event=str(number), kind="k", body="{}"))
        session.flush()
        WebhookRepository(session).bound(3)
        left = [(row.webhook, row.event) for row in session.query(WebhookDelivery).order_by(WebhookDelivery.id)]
    assert left == [(id, "2"), (id, "3"), (id, "4")] and seen(plane, id)["dropped"] == 2


def test_webhooks_are_listed_and_deleted_without_their_secrets(plane: Plane, receiver: Receiver) -> None:
    body, key = {"url": receiver.url, "kinds": ["epoch.committed"]}, {"Idempotency-Key": "once"}
    made, again = (plane.client.post("/v1/webhooks", json=body, headers=key).json() for _ in range(2))
    assert made["secret"].startswith("whsec_") and again == {**made, "secret": None}
    del again["secret"]
    assert plane.get("/v1/webhooks")["items"] == [again]
    check_problem(plane.as_bearer(plane.token("author")).get("/v1/webhooks"), 403, "forbidden")

    assert plane.client.delete(f"/v1/webhooks/{made['id']}").status_code == 204
    check_problem(plane.client.delete(f"/v1/webhooks/{made['id']}"), 404, "not-found")
    assert plane.get("/v1/webhooks")["items"] == []


def test_a_receiver_refuses_what_is_forged_altered_or_old() -> None:
    body = b'{"id":"a"}'
    good = deliveries.signature(SECRET, 1_000, body)
    verify(SECRET, good, body, tolerance_seconds=float("inf"))
    for secret, signature, content in (
        ("another", good, body),
        (SECRET, good, body + b" "),
        (SECRET, good.replace("t=1000", "t=1001"), body),
        (SECRET, "v1=abc", body),
        (SECRET, "", body),
    ):
        with pytest.raises(Unauthenticated):
            verify(secret, signature, content, tolerance_seconds=float("inf"))
    with pytest.raises(Unauthenticated, match="older"):
        verify(SECRET, good, body)
