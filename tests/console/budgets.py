"""Measurements of a page for the tests of budgets: its longest task, and the bytes of its objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

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
