"""The project with which the console starts, for callers without a role in ``default``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from epochal.client import Client
from epochal.testing.servers.control_plane import ControlPlane
from tests.console.browsing import admin_token, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def elsewhere(new_plane: ControlPlane) -> Iterator[str]:
    """A token whose only role is in the project ``billing``."""
    with new_plane.client() as admin, Client(new_plane.url, admin_token(new_plane), project="billing") as client:
        admin.projects.create("billing")
        token = client.tokens.create("bills", "viewer")
        assert token.token
        yield token.token
        client.tokens.delete(token.id)
        admin.projects.delete("billing")


def test_a_caller_starts_on_a_project_with_a_role(signed_out: Page, new_plane: ControlPlane, elsewhere: str) -> None:
    refused: list[str] = []
    signed_out.on("response", lambda answer: refused.append(answer.url) if answer.status == 403 else None)
    signed_out.goto(f"{new_plane.url}/console/")
    sign_in(signed_out, elsewhere)
    signed_out.wait_for_url("**/console/projects/billing/applications")
    signed_out.wait_for_selector("h1:text-is('Applications')")
    signed_out.wait_for_selector("header >> text=live")
    assert signed_out.locator("header select").input_value() == "billing"
    # Also with the session of the cookie, and on another page.
    signed_out.goto(f"{new_plane.url}/console/operations?state=failed")
    signed_out.wait_for_url("**/console/projects/billing/operations?state=failed")
    signed_out.wait_for_selector("h1:text-is('Operations')")
    signed_out.wait_for_selector("text=No operation")
    assert refused == []


def test_a_link_to_another_project_shows_the_refusal(signed_out: Page, new_plane: ControlPlane, elsewhere: str) -> None:
    signed_out.goto(f"{new_plane.url}/console/applications/orders")
    sign_in(signed_out, elsewhere)
    signed_out.wait_for_selector("main [role=alert] >> text=role")
    signed_out.select_option("header select", "billing")
    signed_out.wait_for_url("**/console/projects/billing/applications")
    signed_out.wait_for_selector("[role=alert]", state="detached")
