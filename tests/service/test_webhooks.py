"""Webhooks with a real receiver: deliveries are signed, in order, and repeated after failures and restarts."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil
import pytest
from cryptography import x509

from epochal.client.events import verify_signature
from epochal.contracts.catalog import Failure
from epochal.errors import Unauthenticated
from epochal.service.catalog.models import Webhook, WebhookDelivery
from epochal.service.catalog.webhooks import WebhookRepository
from epochal.service.domain import addresses
from epochal.service.domain.settings import Settings
from epochal.service.runtime import webhooks as deliveries
from tests.kit.waiting import eventually
from tests.service.cli.test_cli_tls import Authority
from tests.service.conftest import Plane, StandInSupervisor, free_port, http_client, serving
from tests.service.problems import check_problem

SECRET = "a secret of the receiver".replace(" ", "-")
FAILURE = Failure(type="author-error", message="division by zero")
KINDS = ["epoch.committed", "epoch.aborted", "attempt.failed", "application.failed"]


def _server_class(host: str) -> type[ThreadingHTTPServer]:
    if ":" not in host:
        return ThreadingHTTPServer
    return type("IPv6Server", (ThreadingHTTPServer,), {"address_family": socket.AF_INET6})


class Receiver:
    """Answers with the statuses of ``answers``, one each, then with 204. ``accepted``: the events that were answered
    with 204."""

    def __init__(self, port: int = 0, host: str = "127.0.0.1", location: str = "/elsewhere") -> None:
        receiver = self
        self.answers: list[int] = []
        self.received: list[dict[str, Any]] = []
        self.paths: list[tuple[str | None, str]] = []
        self.accepted: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                receiver.paths.append((self.headers["Host"], self.path))
                self.send_error(404)

            def do_POST(self) -> None:
                receiver.paths.append((self.headers["Host"], self.path))
                body = self.rfile.read(int(self.headers["content-length"]))
                verify_signature(SECRET, self.headers["Epochal-Signature"], body)
                event = json.loads(body)
                assert (self.headers["Epochal-Event-Id"], self.headers["Epochal-Event"]) == (event["id"], event["kind"])
                receiver.received.append(event)
                status = receiver.answers.pop(0) if receiver.answers else 204
                if status == 204:
                    receiver.accepted.append(event)
                self.send_response(status)
                self.send_header("Location", location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = _server_class(host)((host, port), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?a=b"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def encrypt(self, certificate: Path, key: Path, names: list[str | None]) -> None:
        """Speak TLS; append the server name of each connection to ``names``."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        context.sni_callback = lambda socket, name, context: names.append(name)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

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


def add_webhook(plane: Plane, receiver: Receiver, **more: Any) -> str:
    body = {"url": receiver.url, "kinds": KINDS, "secret": SECRET} | more
    return str(plane.post("/v1/webhooks", 201, **body)["id"])


def status_of(plane: Plane, id: str) -> Any:
    return plane.get(f"/v1/webhooks/{id}")


def test_epochs_and_failures_are_delivered_in_order_and_signed(plane: Plane, receiver: Receiver) -> None:
    plane.application()
    plane.application("other")
    driver, other = plane.driver(), plane.driver("other")
    driver.running()
    driver.epoch()
    id = add_webhook(plane, receiver, applications=["flights"])
    commits = Receiver()
    add_webhook(plane, commits, kinds=["epoch.committed"])

    driver.epochs(2)
    other.epoch()
    driver.catalog.open_epoch(4, driver.head_key)
    driver.catalog.abort_epoch(4, FAILURE)
    driver.catalog.finish(FAILURE)
    plane.control.ledger.execution_ended(driver.execution, "failed", FAILURE)

    eventually(lambda: len(receiver.accepted) == 5 and len(commits.accepted) == 3)
    branch = driver.point.branch
    assert [(event["id"], event["kind"]) for event in receiver.accepted] == [
        (f"{branch}/2/committed", "epoch.committed"),
        (f"{branch}/3/committed", "epoch.committed"),
        (f"{branch}/4/aborted", "epoch.aborted"),
        (f"{driver.execution}/1/failed", "attempt.failed"),
        (f"{driver.execution}/failed", "application.failed"),
    ]
    assert {event["application"] for event in receiver.accepted} == {"flights"}
    assert receiver.accepted[0]["data"]["rows_in"] == 2 and receiver.accepted[0]["data"]["state"] == "committed"
    assert all(event["data"]["failure"]["message"] == "division by zero" for event in receiver.accepted[2:])
    assert [event["application"] for event in commits.accepted] == ["flights", "flights", "other"]
    eventually(lambda: bool(status_of(plane, id)["waiting"] == 0 and status_of(plane, id)["delivered_at"]))
    commits.close()


def test_failed_delivery_is_repeated_and_redirects_are_not_followed(plane: Plane, receiver: Receiver) -> None:
    receiver.answers = [500, 302, 204, 503]
    id = add_webhook(plane, receiver)
    plane.application()
    plane.driver().epochs(2)

    eventually(lambda: len(receiver.accepted) == 2)
    assert [event["data"]["epoch"] for event in receiver.received] == [1, 1, 1, 2, 2]
    assert len({event["id"] for event in receiver.received}) == 2
    eventually(lambda: bool(status_of(plane, id)["state"] == "active"))
    assert status_of(plane, id)["last_error"] is None


def test_restart_loses_no_event(local: Settings) -> None:
    receiver = Receiver()
    receiver.close()
    with running(local) as plane:
        id = add_webhook(plane, receiver)
        plane.application()
        plane.driver().epochs(3)
        eventually(lambda: bool(status_of(plane, id)["state"] == "failing"))
        assert status_of(plane, id)["waiting"] == 3 and "Connect" in status_of(plane, id)["last_error"]
    again = Receiver(int(receiver.url.split(":")[2].partition("/")[0]))
    try:
        with running(local):
            eventually(lambda: len(again.accepted) == 3)
    finally:
        again.close()
    assert [event["data"]["epoch"] for event in again.accepted] == [1, 2, 3]


def test_delivery_to_this_machine_requires_the_setting(local: Settings, receiver: Receiver) -> None:
    with running(local) as plane:
        id = add_webhook(plane, receiver)
    with running(local.model_copy(update={"webhooks_local": False})) as plane:
        plane.application()
        plane.driver().epoch()
        eventually(lambda: bool(status_of(plane, id)["state"] == "failing"))
        assert "127.0.0.1 is an address of the control plane's own machine" in status_of(plane, id)["last_error"]
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
    assert receiver.received == []


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize("target", ["this machine", "http://169.254.169.254/latest/meta-data/"])
def test_redirect_to_a_refused_address_is_not_followed(
    plane: Plane, receiver: Receiver, status: int, target: str
) -> None:
    redirecting = Receiver(location=receiver.url if target == "this machine" else target)
    redirecting.answers = [status] * 1000
    try:
        id = add_webhook(plane, redirecting)
        plane.application()
        plane.driver().epoch()
        eventually(lambda: len(redirecting.received) >= 2)
        assert status_of(plane, id)["last_error"] == f"the receiver answered {status} (redirects are not followed)"
        redirecting.answers.clear()
        eventually(lambda: len(redirecting.accepted) == 1)
    finally:
        redirecting.close()
    assert receiver.paths == []


def own_addresses() -> list[str]:
    """One address of an interface per family, neither loopback nor link-local."""
    found: dict[int, str] = {}
    for interface in psutil.net_if_addrs().values():
        for each in interface:
            if each.family in (socket.AF_INET, socket.AF_INET6):
                address = ip_address(each.address.partition("%")[0])
                if not address.is_loopback and not address.is_link_local:
                    found.setdefault(each.family, str(address))
    return [*found.values()]


def resolve_hooks(monkeypatch: pytest.MonkeyPatch, answers: Callable[[], list[str]]) -> list[str]:
    """Resolve ``hooks.example`` to ``answers()``; return the list of its look-ups so far."""
    received: list[str] = []
    original = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *others: Any, **more: Any) -> Any:
        if host not in ("hooks.example", b"hooks.example"):
            return original(host, port, *others, **more)
        received.append(str(host))
        return [item for answer in answers() for item in original(answer, port, *others, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return received


def test_delivery_to_an_interface_of_this_machine_is_refused(local: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    own = own_addresses()
    if not own:
        pytest.skip("this machine has only the loopback interface")
    receivers = [Receiver(host=address) for address in own]
    resolve_hooks(monkeypatch, lambda: own)
    with running(local.model_copy(update={"webhooks_local": False})) as plane:
        ids = []
        for address, receiver in zip(own, receivers, strict=True):
            host = f"[{address}]" if ":" in address else address
            answer = plane.client.post("/v1/webhooks", json={"url": f"http://{host}:{receiver.port}/", "kinds": KINDS})
            check_problem(answer, 422, "invalid-input")
            ids.append(add_webhook(plane, receiver, url=f"http://hooks.example:{receiver.port}/"))
        plane.application()
        plane.driver().epoch()
        for id in ids:
            eventually(lambda id=id: bool(status_of(plane, id)["state"] == "failing"))
            assert "an address of the control plane's own machine" in status_of(plane, id)["last_error"]
    for receiver in receivers:
        receiver.close()
        assert receiver.paths == []


def test_connection_uses_the_address_that_was_checked(local: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that changes between two look-ups (DNS rebinding). An interface of this machine stands for another
    machine."""
    outside = next((address for address in own_addresses() if "." in address), None)
    if outside is None:
        pytest.skip("this machine has only the loopback interface")
    monkeypatch.setattr(addresses, "is_of_this_machine", lambda address: False)
    receiver = Receiver(host=outside)
    inside = Receiver(receiver.port)
    answers = [[outside]]
    received = resolve_hooks(monkeypatch, lambda: answers.pop(0) if answers else ["127.0.0.1"])
    try:
        with running(local.model_copy(update={"webhooks_local": False})) as plane:
            id = add_webhook(plane, receiver, url=f"http://hooks.example:{receiver.port}/hook")
            plane.application()
            driver = plane.driver()
            driver.epoch()
            eventually(lambda: len(receiver.accepted) == 1)
            assert received == ["hooks.example"], "one look-up for a delivery"
            assert receiver.paths == [(f"hooks.example:{receiver.port}", "/hook")]

            driver.epoch()
            eventually(lambda: bool(status_of(plane, id)["state"] == "failing"))
            assert "127.0.0.1 is an address" in status_of(plane, id)["last_error"]

            answers += [[outside, "127.0.0.1"]] * 3
            eventually(lambda: not answers)
            assert len(receiver.paths) == 1, "one refused address refuses the name"
            answers += [[outside]] * 3
            eventually(lambda: len(receiver.accepted) == 2)
    finally:
        receiver.close()
        inside.close()
    assert inside.paths == []


def test_certificate_is_verified_for_the_name_not_the_address(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_hooks(monkeypatch, lambda: ["127.0.0.1"])
    authority = Authority(tmp_path / "authority")
    monkeypatch.setattr("certifi.where", lambda: str(authority.file))
    receivers = [Receiver(), Receiver()]
    names: list[str | None] = []
    for receiver, name in zip(receivers, ("hooks.example", "other.example"), strict=True):
        receiver.encrypt(*authority.issue(name, x509.DNSName(name)), names)
    try:
        ids = [add_webhook(plane, each, url=f"https://hooks.example:{each.port}/hook") for each in receivers]
        plane.application()
        plane.driver().epoch()
        eventually(lambda: len(receivers[0].accepted) == 1)
        eventually(lambda: bool(status_of(plane, ids[1])["state"] == "failing"))
        assert "certificate verify failed" in status_of(plane, ids[1])["last_error"]
        assert set(names) == {"hooks.example"} and receivers[1].paths == []
    finally:
        for receiver in receivers:
            receiver.close()


@pytest.mark.parametrize("status", [410, 500])
def test_webhook_that_fails_for_too_long_is_disabled(
    plane: Plane, receiver: Receiver, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if status == 500:
        monkeypatch.setattr(deliveries, "DISABLED_AFTER", timedelta(seconds=-1))
    receiver.answers = [status]
    id = add_webhook(plane, receiver)
    plane.application()
    driver = plane.driver()
    driver.epoch()
    eventually(lambda: bool(status_of(plane, id)["state"] == "disabled"))
    driver.epoch()
    now = status_of(plane, id)
    assert (now["waiting"], now["dropped"], now["last_error"]) == (0, 1, f"the receiver answered {status}")
    assert receiver.accepted == []


def test_oldest_deliveries_over_the_limit_are_dropped_and_counted(plane: Plane, receiver: Receiver) -> None:
    id = add_webhook(plane, receiver, kinds=["application.failed"])
    with plane.control.database.writing() as session:
        session.get_one(Webhook, id).disabled_at = session.get_one(Webhook, id).created_at
        for number in range(5):
            for webhook in (id, "deleted"):
                session.add(WebhookDelivery(webhook=webhook, event=str(number), kind="k", body="{}"))
        session.flush()
        WebhookRepository(session).bound(3)
        remaining = [(row.webhook, row.event) for row in session.query(WebhookDelivery).order_by(WebhookDelivery.id)]
    assert remaining == [(id, "2"), (id, "3"), (id, "4")] and status_of(plane, id)["dropped"] == 2


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


def test_receiver_refuses_forged_altered_or_old_requests() -> None:
    body = b'{"id":"a"}'
    good = deliveries.signature(SECRET, 1_000, body)
    verify_signature(SECRET, good, body, tolerance_seconds=float("inf"))
    for secret, signature, content in (
        ("another", good, body),
        (SECRET, good, body + b" "),
        (SECRET, good.replace("t=1000", "t=1001"), body),
        (SECRET, "v1=abc", body),
        (SECRET, "", body),
    ):
        with pytest.raises(Unauthenticated):
            verify_signature(secret, signature, content, tolerance_seconds=float("inf"))
    with pytest.raises(Unauthenticated, match="older"):
        verify_signature(SECRET, good, body)
