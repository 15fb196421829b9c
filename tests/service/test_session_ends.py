"""When sessions end: with their token, their time, or without use."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, update

from epochal.service.catalog.models import Token
from epochal.service.domain.setting_sections import Sessions
from epochal.service.domain.settings import Settings
from epochal.service.runtime import browser_sessions
from epochal.service.runtime.expiry import CatalogExpiry
from tests.service.browser import Browser, change, stored
from tests.service.problems import check_problem

if TYPE_CHECKING:
    from tests.service.conftest import Plane


@pytest.mark.parametrize("how", ["delete", "rotate", "project"])
def test_a_revoked_token_ends_its_sessions(plane: Plane, how: str) -> None:
    plane.post("/v1/projects", 201, name="pricing")
    path = "/v1/projects/pricing/tokens" if how == "project" else "/v1/tokens"
    made = plane.post(path, 201, name="ci", role="author")
    browser = Browser(plane.settings)
    browser.log_in(made["token"])
    assert browser.get().status_code == 200
    match how:
        case "delete":
            plane.client.delete(f"/v1/tokens/{made['id']}")
        case "rotate":
            plane.post(f"/v1/tokens/{made['id']}/rotate", 201)
        case _:
            plane.client.delete("/v1/projects/pricing")
    check_problem(browser.get(), 401, "unauthenticated")
    assert stored(plane) == []


def test_a_token_that_an_earlier_version_deleted_ends_its_sessions(plane: Plane, browser: Browser) -> None:
    browser.log_in(plane.token("viewer"))
    with plane.control.database.writing() as session:
        session.delete(session.scalars(select(Token).where(Token.name == "a-viewer")).one())
    plane.control.authenticator.forget()
    check_problem(browser.get(), 401, "unauthenticated")
    assert plane.get("/v1/sessions")["items"] == []
    assert CatalogExpiry(plane.control.database, plane.settings.kept).expire_sessions()
    assert stored(plane) == []


def test_a_session_ends_with_its_token(plane: Plane, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    at = datetime.now(UTC) + timedelta(minutes=5)
    token = plane.post("/v1/tokens", 201, name="short", role="viewer", expires_at=at.isoformat())["token"]
    assert datetime.fromisoformat(browser.log_in(token)["expires_at"]) == at
    monkeypatch.setattr(browser_sessions, "now", lambda: at - timedelta(microseconds=1))
    assert browser.get().status_code == 200
    monkeypatch.setattr(browser_sessions, "now", lambda: at)
    check_problem(browser.get(), 401, "unauthenticated")
    plane.control.authenticator.forget()
    check_problem(browser.get(), 401, "unauthenticated")


def test_roles_are_those_of_the_token_now(plane: Plane, browser: Browser) -> None:
    browser.log_in(plane.token("author"))
    with plane.control.database.writing() as session:
        session.execute(update(Token).where(Token.name == "a-author").values(roles={"default": "viewer"}))
    plane.control.authenticator.forget()
    assert browser.get().json()["roles"] == {"default": "viewer"}
    refused = browser.request("POST", "/v1/applications", json={})
    check_problem(refused, 403, "forbidden")


@pytest.mark.parametrize(("column", "hours"), [("expires_at", 0), ("last_used_at", -2)])
def test_expired_and_idle_sessions_end_and_are_deleted(plane: Plane, browser: Browser, column: str, hours: int) -> None:
    browser.log_in(plane.admin_token)
    expiry = CatalogExpiry(plane.control.database, plane.settings.kept, plane.settings.sessions)
    assert not expiry.expire_sessions()
    change(plane, **{column: datetime.now(UTC) + timedelta(hours=hours, minutes=1)})
    assert browser.get().status_code == 200
    change(plane, **{column: datetime.now(UTC) + timedelta(hours=hours)})
    check_problem(browser.get(), 401, "unauthenticated")
    assert plane.get("/v1/sessions")["items"] == []
    assert expiry.expire_sessions() and not expiry.expire_sessions()
    assert stored(plane) == []


def test_use_extends_an_idle_session(plane: Plane, browser: Browser) -> None:
    browser.log_in(plane.admin_token)
    before = datetime.now(UTC) - timedelta(hours=1)
    change(plane, last_used_at=before)
    browser.get("/v1/applications")
    (row,) = stored(plane)
    assert row.last_used_at > before + timedelta(minutes=59)
    plane.control.authenticator.forget()
    browser.get("/v1/applications")
    assert stored(plane)[0].last_used_at == row.last_used_at  # stored once a minute


def test_settings_limit_the_duration(settings: Settings, serve: Callable[..., Any]) -> None:
    brief = settings.model_copy(update={"sessions": Sessions(hours=0.5, idle_hours=0.25)})
    with serve(brief) as (_, token):
        made = Browser(settings).log_in(token)
    lasts = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert (lasts, made["idle_seconds"]) == (timedelta(minutes=30), 900)
