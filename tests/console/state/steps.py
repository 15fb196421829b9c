"""Steps of the tests of the state page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from playwright.sync_api import Page

TYPED_KEY = ("12.50", "2013-01-31T05:15:00.000000Z", "AP8=")
STATE = "/console/applications/flights/state"


def text_of(*values: Any) -> str:
    """A key as the page writes it into an address and into commands."""
    return ",".join("%00" if value is None else quote(str(value), safe="") for value in values)


def show(page: Page, table: str, key: Sequence[Any] | None = None, more: str = "") -> None:
    fragment = "" if key is None else "#key=" + quote(text_of(*key), safe="")
    url = f"{STATE}?table={table}{more}{fragment}"
    page.evaluate("url => { history.pushState(null, '', url); dispatchEvent(new PopStateEvent('popstate')) }", url)
    if key is not None:
        page.wait_for_selector(".key-view .blame, .key-view .notice.bad", timeout=20_000)


def values_shown(page: Page) -> dict[str, str]:
    """Columns and texts of the value, without units."""
    return dict(
        page.evaluate(
            "() => [...document.querySelectorAll('.key-view dl.value > div')].map(div => [div.querySelector('dt')."
            "textContent, (div.querySelector('dd bdi') ?? div.querySelector('dd i')).textContent])"
        )
    )
