"""Parts of the tests that use a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epochal.client import Client
from epochal.testing.servers.control_plane import ControlPlane
from tests.console.bundle import PACKAGES

if TYPE_CHECKING:
    from playwright.sync_api import Browser, CDPSession, Page

BROWSERS = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
SCRIPT = "<script>window.wrong=1</script>"
PIPELINE = f"""
from epochal import Pipeline
from epochal.connectors import console, generator

pipeline = Pipeline("hostile")
rows = pipeline.read("rows", generator.source({{"n": "noise % 4"}}, rate=20))
named = rows.select(
    "CASE n WHEN 0 THEN '{SCRIPT}' WHEN 1 THEN '<img src=x onerror=window.wrong=1>' WHEN 2 THEN repeat('long ', 100) "
    "ELSE '\\u202eright to left' END AS name"
)
named.key_by("name").aggregate("counts", seen="count(*)", note="max(name)").write("out", console.sink(rows=1))
"""
LONGEST_TASK_MS = 200
ATTEMPTS = 4
"""Other processes of the machine also delay a task: the budget is that of the best attempt."""
_WATCH = """() => {
    window.longest = 0;
    window.watching ??= new PerformanceObserver(list => {
        for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
    });
    window.watching.observe({ entryTypes: ['longtask'] });
}"""


def browser_path() -> str:
    """Return the path of Chromium. Skips the test, with the reason, if it or its driver is not installed."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next((path for path in BROWSERS if Path(path).exists()), None)
    if found is None:
        pytest.skip("no Chromium is installed at " + ", ".join(BROWSERS))
    return found


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """Start Chromium. Its driver has an event loop in this thread until the end of the context."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def opened(browser: Browser, width: int = 1280, **options: Any) -> Iterator[Page]:
    """Open a page in a context of its own. Fails at the end if the page raised an error, broke its policy or ran a
    name as a script."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    try:
        yield page
        assert wrong == []
        assert page.evaluate("window.wrong") is None
    finally:
        # Also after a failure: the event stream of a page keeps its control plane from ending.
        context.close()


def admin_token(plane: ControlPlane) -> str:
    return (plane.home / "admin.token").read_text().strip()


def sign_in(page: Page, token: str) -> None:
    """Enter a token on the sign-in page, and wait for the page behind it."""
    page.fill("input[name=token]", token)
    page.keyboard.press("Enter")
    page.wait_for_selector("header.top")


def show(page: Page, path: str) -> None:
    """Go to a view as a link within the page does."""
    page.evaluate("url => { history.pushState(null, '', url); dispatchEvent(new PopStateEvent('popstate')) }", path)


def add_axe(page: Page) -> None:
    """Load axe into the page. Skips the test, with the reason, if it is not installed."""
    axe = PACKAGES / "axe-core" / "axe.min.js"
    if not axe.exists():
        pytest.skip("axe-core is not installed: run `make console`")
    # Scripts of the driver of the browser are not subject to the policy of the page.
    page.evaluate(axe.read_text())


def violations(page: Page) -> list[tuple[str, str]]:
    """Return the violations that axe finds: the rule and the first element of each."""
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [(each["id"], each["nodes"][0]["html"]) for each in found]


def committed(client: Client, name: str = "hostile") -> int:
    """The last committed epoch of an application; 0 if it has none."""
    head = client.application(name).get().head
    return head.epoch if head else 0


def watch(page: Page) -> None:
    """Begin to measure tasks of the page's thread, or begin again."""
    page.evaluate(_WATCH)


def longest_task(page: Page) -> float:
    """The longest task since ``watch``, in milliseconds; 0 if each took less than 50 ms."""
    page.wait_for_timeout(300)  # entries arrive after their task
    return float(page.evaluate("() => window.longest"))


def heap_bytes(session: CDPSession) -> int:
    """The bytes of objects that scripts of the page hold, after garbage collections."""
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return int(found["JSHeapUsedSize"])
