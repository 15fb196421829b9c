"""A browser of the tests, and the rows of its sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
from sqlalchemy import select, update

from epochal.service.catalog.models import UserSession
from epochal.service.domain.settings import Settings

if TYPE_CHECKING:
    from tests.service.conftest import Plane


class Browser:
    """A client that sends cookies as a browser does, and no token. ``csrf``: sent with each request, if set."""

    def __init__(self, settings: Settings, csrf: str | None = None, cookie: str | None = None) -> None:
        self.client = httpx.Client(base_url=settings.url, trust_env=False, timeout=60)
        self.csrf = csrf
        self.name = f"epochal-session-{settings.port}"
        if cookie is not None:
            self.client.cookies.set(self.name, cookie, domain="127.0.0.1", path="/")

    def log_in(self, token: str) -> dict[str, Any]:
        answer = self.client.post("/v1/session", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 201, answer.text
        body: dict[str, Any] = answer.json()
        self.csrf = body["csrf_token"]
        return body

    @property
    def cookie(self) -> str:
        return str(self.client.cookies[self.name])

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {} if self.csrf is None else {"X-CSRF-Token": self.csrf}
        return self.client.request(method, path, headers={**headers, **more.pop("headers", {})}, **more)

    def get(self, path: str = "/v1/session", **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)


def stored(plane: Plane) -> list[UserSession]:
    with plane.control.database.reading() as session:
        return list(session.scalars(select(UserSession).order_by(UserSession.id)))


def change(plane: Plane, **values: Any) -> None:
    """Change all rows, as time would."""
    with plane.control.database.writing() as session:
        session.execute(update(UserSession).values(**values))
    plane.control.authenticator.forget()


def audited(plane: Plane, action: str) -> list[dict[str, Any]]:
    return [item for item in plane.get("/v1/audit")["items"] if item["action"] == action]
