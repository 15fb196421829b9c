"""Streams of events and logs end with the token or session of their caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

import httpx
import pytest

from epochal.errors import CatalogUnavailable
from epochal.service.api import events as event_routes
from epochal.service.api import following, logs
from epochal.service.catalog.types import now
from epochal.service.runtime import browser_sessions
from epochal.service.runtime.events import hub
from tests.service.browser import Browser, change, stored
from tests.service.problems import check_problem

if TYPE_CHECKING:
    from tests.service.conftest import Plane

EVENTS, OF_ONE, LOGS = "/v1/events", "/v1/applications/flights/events", "/v1/applications/flights/logs?follow=true"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(event_routes, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(hub, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(logs, "POLL_SECONDS", 0.1)


@pytest.fixture
def application(plane: Plane) -> Plane:
    plane.application()
    plane.driver().running()
    return plane


@contextmanager
def streaming(client: httpx.Client, path: str) -> Iterator[Iterator[str]]:
    """Lines of a stream, whose answer ends within seconds or raises ``ReadTimeout``."""
    with client.stream("GET", path, timeout=5.0) as answer:
        assert answer.status_code == 200
        yield answer.iter_lines()


def end_token(plane: Plane, browser: Browser) -> None:
    (token,) = (item for item in plane.get("/v1/tokens")["items"] if item["name"] == "a-viewer")
    assert plane.client.delete(f"/v1/tokens/{token['id']}").status_code == 204


def log_out(plane: Plane, browser: Browser) -> None:
    assert browser.request("DELETE", "/v1/session").status_code == 204


def expire(plane: Plane, browser: Browser) -> None:
    change(plane, expires_at=now() - timedelta(seconds=1))


def revoke(plane: Plane, browser: Browser) -> None:
    (session,) = stored(plane)
    assert plane.client.delete(f"/v1/sessions/{session.id}").status_code == 204


@pytest.mark.parametrize(("path", "end"), [(EVENTS, end_token), (EVENTS, log_out), (OF_ONE, expire), (LOGS, revoke)])
def test_a_stream_ends_with_its_session(
    application: Plane, browser: Browser, path: str, end: Callable[[Plane, Browser], None]
) -> None:
    browser.log_in(application.token("viewer"))
    other = application.as_bearer(application.token("viewer", "other"))
    with streaming(browser.client, path) as lines, streaming(other, EVENTS) as others:
        end(application, Browser(application.settings, browser.csrf, browser.cookie))
        assert len(list(islice(lines, 200))) < 200
        assert ": still here" in list(islice(others, 10))[-4:]
    check_problem(browser.get(path), 401, "unauthenticated")


def test_a_stream_ends_with_its_token(application: Plane, browser: Browser) -> None:
    client = application.as_bearer(application.token("viewer"))
    with streaming(client, EVENTS) as lines:
        assert next(lines) == "retry: 1000"
        end_token(application, browser)
        assert len(list(islice(lines, 200))) < 200
    check_problem(client.get(EVENTS), 401, "unauthenticated")


def test_a_stream_counts_as_use_of_its_session(application: Plane, browser: Browser) -> None:
    browser.log_in(application.token("viewer"))
    an_hour_ago = now() - timedelta(hours=1)
    with streaming(browser.client, EVENTS) as lines:
        change(application, last_used_at=an_hour_ago)
        assert list(islice(lines, 10)).count(": still here") >= 3
        (session,) = stored(application)
    assert session.last_used_at > an_hour_ago


def test_a_stream_continues_while_the_catalog_does_not_answer(
    application: Plane, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser.log_in(application.token("viewer"))
    failures: list[str] = []

    def away(*_: object) -> None:
        failures.append("")
        raise CatalogUnavailable("The catalog does not answer.")

    with streaming(browser.client, EVENTS) as lines:
        monkeypatch.setattr(browser_sessions.BrowserSessions, "_look_up", away)
        application.control.authenticator.forget()
        for line in lines:
            if line == ": still here" and len(failures) > 1:
                break
        monkeypatch.undo()
