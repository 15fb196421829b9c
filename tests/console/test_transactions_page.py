"""Transactions of a sink whose database refuses rows: retry, commit and abort in a browser."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from epochal.testing.servers.control_plane import ControlPlane
from tests.console.browsing import add_axe, opened, show, sign_in, violations
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.long]

REFUSAL = "product 3 is not for sale"
PIPELINE = """
from epochal import Pipeline
from epochal.connectors import console, dbms, generator

pipeline = Pipeline("sales")
rows = pipeline.read("rows", generator.source({{"product": "noise % 4"}}, rate=40))
rows.write("out", console.sink(rows=1))
rows.write("sold", dbms.sink("sqlite:///{database}", "sold"))
"""
PATH = "/console/applications/sales/work"


@pytest.fixture(scope="module")
def database(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The database of the running application ``sales``, which refuses a row of each epoch."""
    folder = tmp_path_factory.mktemp("sales")
    database = folder / "sales.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE sold (product integer)")
        connection.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON sold WHEN new.product = 3 "
            f"BEGIN SELECT raise(ABORT, '{REFUSAL}'); END"
        )
    file = folder / "sales.py"
    file.write_text(PIPELINE.format(database=database))
    with plane.client() as client:
        client.applications.create("sales", client.artifacts.upload(file).sha256)
        transactions = client.application("sales").transactions
        eventually(lambda: len([each for each in transactions.list() if each.error]) >= 4, 120)
        yield database
        client.operations.wait(client.applications.stop("sales"))
        client.applications.delete("sales")


def open_epochs(plane: ControlPlane) -> list[int]:
    """Epochs that the sink ``sold`` has not committed."""
    with plane.client() as client:
        return [each.epoch for each in client.application("sales").transactions.list() if each.sink == "sold"]


def rows_sold(database: Path) -> int:
    with sqlite3.connect(database) as connection:
        return int(connection.execute("SELECT count(*) FROM sold").fetchone()[0])


@pytest.mark.parametrize("role", ["viewer", "author"])
def test_only_administrators_see_decisions(
    browser: Browser, plane: ControlPlane, database: Path, role: Literal["viewer", "author"]
) -> None:
    with plane.client() as client, opened(browser) as page:
        token = client.tokens.create(f"sees-{role}", role)
        assert token.token
        page.goto(f"{plane.url}{PATH}")
        sign_in(page, token.token)
        page.wait_for_selector(f"[aria-label='Sink sold'] >> text={REFUSAL}")
        page.wait_for_selector("text=An administrator of the project can retry")
        page.click("[aria-label='Sink sold'] summary")
        page.wait_for_selector("[aria-label='Later epochs of sold'] td")
        assert page.locator("[aria-label='Sink sold'] button").count() == 0
        client.tokens.delete(token.id)


def test_a_blocked_transaction_is_aborted_committed_and_retried(
    page: Page, plane: ControlPlane, database: Path
) -> None:
    show(page, PATH)
    sink = page.locator("[aria-label='Sink sold']")
    sink.locator(f"text={REFUSAL}").wait_for()
    page.wait_for_selector("text=1 sink blocked")
    first, second, third, *_ = open_epochs(plane)

    # A dialog that is closed by Escape decides nothing.
    sink.locator(f"button:has-text('Abort epoch {first} of sold')").first.click()
    dialog = page.locator("dialog")
    dialog.locator(f"text=rows of epoch {first}").wait_for()
    dialog.locator("text=It cannot be undone").wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert open_epochs(plane)[0] == first

    sink.locator(f"button:has-text('Abort epoch {first} of sold')").first.click()
    dialog.locator("input").fill("the product was withdrawn")
    dialog.locator(f"button.danger:text-is('Abort epoch {first}')").click()
    sink.locator(f"text=epoch {second}, ").wait_for()
    page.wait_for_selector(f"[role=status] >> text=request to abort epoch {first} of sold")

    sink.locator(f"button:has-text('Commit epoch {second} of sold')").first.click()
    dialog.locator("text=applied by hand").wait_for()
    dialog.locator(f"button.danger:text-is('Commit epoch {second}')").click()
    sink.locator(f"text=epoch {third}, ").wait_for()
    assert rows_sold(database) == 0

    # A retry without a change of the database fails again, and says so.
    sink.locator(f"button:has-text('Retry epoch {third} of sold')").click()
    dialog.locator(f"button.primary:text-is('Retry epoch {third}')").click()
    page.wait_for_selector("[role=status] >> text=which is still blocked")
    add_axe(page)
    assert violations(page) == []
    with sqlite3.connect(database) as connection:
        connection.execute("DROP TRIGGER refuse")
    sink.locator(f"button:has-text('Retry epoch {third} of sold')").click()
    dialog.locator(f"button.primary:text-is('Retry epoch {third}')").click()
    sink.locator(".state.bad").wait_for(state="detached")
    eventually(lambda: rows_sold(database) > 0, 30)
    with plane.client() as client:
        changes = {
            change.detail["action"]: (node.epoch, change.detail.get("message"))
            for node in client.application("sales").lineage().nodes
            for change in node.changes
            if change.kind == "transaction"
        }
    assert changes == {"abort": (first, "the product was withdrawn"), "commit": (second, None)}
