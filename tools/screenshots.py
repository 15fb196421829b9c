"""Pictures of every page of the console: `make screenshots`.

``python -m tools.screenshots FOLDER`` starts a control plane with an example, and writes each page in two widths and
two themes. ``--docs`` also writes the pictures of README and docs to docs/images. ``--stay`` prints the address and
the token, and waits for Enter instead. Needs Chromium and PyPI's playwright.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epochal.testing.servers.control_plane import ControlPlane
from tools.screenshots_example import example

if TYPE_CHECKING:
    from playwright.sync_api import Page

IMAGES = Path(__file__).parents[1] / "docs" / "images"
BROWSERS = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
WIDTHS = (1280, 390)
THEMES = ("light", "dark")
LOADED_MS = 30_000


@dataclass(frozen=True)
class View:
    """A page below ``/console``, shown when ``selector`` is. ``image``: name and height of its picture in docs."""

    name: str
    path: str
    selector: str
    image: str | None = None
    height: int = 900


VIEWS = (
    View("applications", "/applications", ".approw .name"),
    View("overview", "/applications/flights", ".graph .node.stateful", "console-overview", 900),
    View("failed", "/applications/refunds", ".notice.bad"),
    View("state", "/applications/flights/state?table=delays", ".state-page"),
    View("key", "/applications/flights/state?table=delays#key=JFK%2CLAX", ".blame", "console-state", 900),
    View("queries", "/applications/flights/queries", "#queries-title"),
    View("lineage", "/applications/flights/lineage?with=orders", ".lineage .snapshot", "console-lineage", 1030),
    View("lineage-overview", "/applications/flights/lineage?zoom=0", ".lineage .snapshot"),
    View("snapshot", "/applications/flights/lineage?pick={savepoint}", "#picked-title"),
    View("diff", "/applications/flights/lineage?pick={savepoint},strict:{strict}", ".diff h3"),
    View("node", "/applications/flights?node=streaks", ".codeline.defining"),
    View("versions", "/applications/flights/versions", "#version-title"),
    View("upgrade", "/applications/flights/versions/upgrade", "#upgrade-title"),
    View("retention", "/applications/flights/retention", "text=Latest epoch"),
    View("history", "/applications/flights/history", ".history li"),
    View("log", "/applications/flights/logs", ".logline"),
    View("work", "/applications/flights/work", "main table, main .empty"),
    View("events-of-flights", "/applications/flights/events", "main select"),
    View("operations", "/operations", "details.opening"),
    View("audit", "/audit", ".auditrow"),
    View("access", "/access", "[aria-label=Tokens]"),
    View("events", "/events", "main select"),
)


def take(plane: ControlPlane, folder: Path, images: Path | None, only: Sequence[str]) -> None:
    """Write the pictures of all views, or of those that ``only`` names, to ``folder``."""
    from playwright.sync_api import sync_playwright

    found = next((path for path in BROWSERS if Path(path).exists()), None)
    if found is None:
        raise SystemExit("No Chromium is installed at " + ", ".join(BROWSERS))
    folder.mkdir(parents=True, exist_ok=True)
    with plane.client() as client:
        savepoint = client.application("flights").savepoints.get("end-of-january").epoch
        strict = client.application("strict").get().head
    places = {"savepoint": savepoint, "strict": strict.epoch if strict else 0}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for theme in THEMES:
            for width in WIDTHS:
                context = browser.new_context(
                    viewport={"width": width, "height": 900}, color_scheme="dark" if theme == "dark" else "light"
                )
                page = context.new_page()
                page.goto(f"{plane.url}/console/")
                page.wait_for_selector("input[name=token]")
                if not only or "sign-in" in only:
                    page.screenshot(path=folder / f"sign-in-{width}-{theme}.png")
                page.fill("input[name=token]", (plane.home / "admin.token").read_text().strip())
                page.keyboard.press("Enter")
                page.wait_for_selector("header.top")
                for view in VIEWS:
                    if not only or view.name in only:
                        _show(page, plane, view, places)
                        page.screenshot(path=folder / f"{view.name}-{width}-{theme}.png", full_page=True)
                        if images is not None and view.image is not None and (width, theme) == (1280, "light"):
                            page.set_viewport_size({"width": 1280, "height": view.height})
                            page.screenshot(path=images / f"{view.image}.png")
                            page.set_viewport_size({"width": 1280, "height": 900})
                context.close()
        browser.close()


def _show(page: Page, plane: ControlPlane, view: View, places: dict[str, int]) -> None:
    page.goto(plane.url + "/console" + view.path.format(**places))
    page.wait_for_selector(view.selector, timeout=LOADED_MS)
    page.wait_for_timeout(2_500)  # charts and rates need two events


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the pictures")
    parser.add_argument("--docs", action="store_true", help="also write the pictures of docs/images")
    parser.add_argument("--stay", action="store_true", help="print the address of the example and wait for Enter")
    parser.add_argument("--only", action="append", default=[], help="name of a view; repeatable")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="epochal-screenshots-") as place, example(Path(place)) as plane:
        if options.stay:
            print(f"{plane.url}/console/ {plane.home / 'admin.token'}", flush=True)
            sys.stdin.readline()
        else:
            take(plane, options.folder, IMAGES if options.docs else None, options.only)


if __name__ == "__main__":
    main(sys.argv[1:])
