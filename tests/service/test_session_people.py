"""Sessions of people, from tokens of an identity provider."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from epochal.service.domain.settings import Settings
from tests.kit.identity_provider import IdentityProvider, identity_provider
from tests.service.browser import Browser, stored
from tests.service.conftest import free_port
from tests.service.problems import check_problem

if TYPE_CHECKING:
    from tests.service.conftest import Plane


class TestPeople:
    """Sessions from tokens of an identity provider."""

    @pytest.fixture
    def provider(self) -> Iterator[IdentityProvider]:
        with identity_provider() as provider:
            yield provider

    @pytest.fixture
    def settings(self, settings: Settings, provider: IdentityProvider) -> Settings:
        return settings.model_copy(update={"oidc": provider.settings()})

    def test_a_person_has_the_same_identity_and_roles(
        self, plane: Plane, browser: Browser, provider: IdentityProvider
    ) -> None:
        token = provider.token(groups=["readers", "builders", "unmapped"])
        made = browser.log_in(token)
        with plane.as_bearer(token) as bearer:
            by_token = bearer.get("/v1/session").json()
        assert made["person"] and (made["name"], made["roles"]) == (by_token["name"], by_token["roles"])
        (row,) = stored(plane)
        assert row.claims is not None and row.claims["groups"] == ["readers", "builders"]
        assert browser.request("POST", "/v1/applications", json={}).status_code == 422
        check_problem(browser.get("/v1/tokens"), 403, "forbidden")

    def test_the_session_ends_with_the_token_of_the_person(
        self, plane: Plane, browser: Browser, provider: IdentityProvider
    ) -> None:
        expires = int(time.time()) + 300
        made = browser.log_in(provider.token(exp=expires))
        assert datetime.fromisoformat(made["expires_at"]).timestamp() == expires

    @pytest.mark.parametrize("seconds", [-60, -1])
    def test_an_expired_token_creates_no_session(
        self, plane: Plane, browser: Browser, provider: IdentityProvider, seconds: int
    ) -> None:
        headers = {"Authorization": f"Bearer {provider.token(exp=time.time() + seconds)}"}
        check_problem(browser.client.post("/v1/session", headers=headers), 401, "unauthenticated")
        assert stored(plane) == []

    def test_a_session_of_a_provider_that_is_no_longer_configured_ends(
        self, plane: Plane, browser: Browser, provider: IdentityProvider, serve: Callable[..., Any]
    ) -> None:
        browser.log_in(provider.token())
        for oidc in (None, provider.settings(audience="another"), provider.settings(issuer="https://id.example.com")):
            second = plane.settings.model_copy(update={"port": free_port(), "oidc": oidc})
            with serve(second):
                check_problem(Browser(second, cookie=browser.cookie).get(), 401, "unauthenticated")
        fewer = provider.settings(roles={"readers": {"other": "viewer"}})
        second = plane.settings.model_copy(update={"port": free_port(), "oidc": fewer})
        with serve(second):
            assert Browser(second, cookie=browser.cookie).get().json()["roles"] == {"other": "viewer"}
