"""Addresses that webhooks must not reach, checked at every delivery, and certificates of receivers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil
import pytest
from cryptography import x509

from epochal.service.domain import addresses
from epochal.service.domain.settings import Settings
from tests.kit.waiting import eventually
from tests.service.cli.test_cli_tls import Authority
from tests.service.conftest import Plane
from tests.service.problems import check_problem
from tests.service.webhook_receivers import KINDS, Receiver, add_webhook, running, status_of
from tests.service.webhook_receivers import _no_pauses as _no_pauses
from tests.service.webhook_receivers import local as local
from tests.service.webhook_receivers import plane as plane
from tests.service.webhook_receivers import receiver as receiver


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
    for each, name in zip(receivers, ("hooks.example", "other.example"), strict=True):
        each.encrypt(*authority.issue(name, x509.DNSName(name)), names)
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
