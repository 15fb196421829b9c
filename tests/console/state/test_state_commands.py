"""Commands that the state page offers are executed, and answer what the page shows."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.console.state.hostile_state import BIG, NAMES, SCRIPT
from tests.console.state.steps import TYPED_KEY, show, values_shown

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.service.conftest import Plane

pytestmark = [pytest.mark.slow, pytest.mark.long]

COMMANDS = Path(sys.executable).parent


def commands(page: Page, label: str) -> dict[str, str]:
    """The commands of the dialog of the key."""
    page.click(".key-view button:text-is('Copy as command')")
    page.locator(f"dialog label:has-text('{label}') input").check()
    texts: list[str] = page.locator("dialog .copyable pre").all_inner_texts()
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    return dict(zip(("cli", "curl", "python"), texts, strict=True))


def shell(plane: Plane, command: str) -> str:
    environment = os.environ | plane.environment | {"COLUMNS": "400"}
    environment["PATH"] = f"{COMMANDS}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def program(plane: Plane, text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The object that the program prints."""
    for name, value in plane.environment.items():
        monkeypatch.setenv(name, value)
    printed: list[Any] = []
    with redirect_stdout(io.StringIO()):
        exec(text, {"print": printed.append})
    assert len(printed) == 1
    return printed[0].model_dump(mode="json")


def as_json(command: str) -> str:
    """The same command with its answer as JSON."""
    words = command.split(" ", 2)
    return f"{words[0]} {words[1]} --json {words[2]}"


KEYS = [
    *(("names", (name,)) for name in NAMES if name != "a,b"),
    *(
        ("pairs", key)
        for key in (("JFK", BIG, "true", "2013-01-31"), ("", -5, "false", None), (None, None, None, "2013-01-31"))
    ),
    ("pairs", ("a,b'\"\n", BIG, "true", "2013-01-31")),
    ("typed", TYPED_KEY),
]


@pytest.mark.parametrize(("table", "key"), KEYS)
def test_commands_answer_what_the_page_shows(
    page: Page, plane: Plane, monkeypatch: pytest.MonkeyPatch, table: str, key: tuple[Any, ...]
) -> None:
    show(page, table, key, "&epoch=3")
    shown = values_shown(page)
    assert page.locator(".key-view .selected").inner_text().startswith("epoch 3")
    value = commands(page, "Value")
    answers = [json.loads(shell(plane, value["curl"])), json.loads(shell(plane, as_json(value["cli"])))]
    answers.append(program(plane, value["python"], monkeypatch))
    assert [answer["epoch"] for answer in answers] == [3, 3, 3]
    assert answers[1]["value"] == answers[2]["value"] == answers[0]["value"]
    if table == "names":
        assert shown["length"] == str(answers[0]["value"]["length"]) == str(3000 + len(key[0] or ""))
        assert shown["note"] == (key[0] if key[0] else "null" if key[0] is None else "empty text")
    else:
        number = "n" if table == "pairs" else "big"
        assert shown[number] == str(answers[0]["value"][number]) == str(BIG + 3)
        assert shown[number] in shell(plane, value["cli"])


@pytest.mark.parametrize("key", [SCRIPT, "", 'it\'s "quoted" $HOME `id` \\ !x', "--epoch", None, "line\nbreak\ttab"])
def test_commands_of_history_and_last_change(
    page: Page, plane: Plane, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    show(page, "names", [key])
    page.wait_for_selector("[aria-label='Changes of the key'] tbody tr")
    epochs = [
        int(text.split()[-1])
        for text in page.locator("[aria-label='Changes of the key'] tbody button").all_inner_texts()
    ]
    assert epochs == [4, 3, 2, 1]
    history = commands(page, "History")
    for answer in (
        json.loads(shell(plane, history["curl"])),
        json.loads(shell(plane, as_json(history["cli"]))),
        program(plane, history["python"], monkeypatch),
    ):
        assert [change["epoch"] for change in answer["items"]] == epochs
        assert [change["new"]["length"] for change in answer["items"]] == [
            each * 1000 + len(key or "") for each in epochs
        ]
    blame = commands(page, "Last change")
    for answer in (
        json.loads(shell(plane, blame["curl"])),
        json.loads(shell(plane, as_json(blame["cli"]))),
        program(plane, blame["python"], monkeypatch),
    ):
        assert (answer["change"]["epoch"], answer["change"]["key"]) == (4, {"name": key})


@pytest.mark.parametrize("prefix", ["", "l", "it's \"", "star*", "-", "50%"])
def test_commands_of_a_prefix_list_the_rows_of_the_page(
    page: Page, plane: Plane, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    show(page, "names", more="&epoch=4")
    page.fill("[data-search]", prefix)
    expected = [name for name in NAMES if prefix == "" or (name or "").startswith(prefix)]
    page.wait_for_selector(f"text=/^{len(expected)} rows? as of epoch 4/")
    page.locator(".caption button:text-is('Copy as command')").click()
    cli, curl, python = page.locator("dialog .copyable pre").all_inner_texts()
    page.keyboard.press("Escape")
    for answer in (
        json.loads(shell(plane, curl)),
        json.loads(shell(plane, as_json(cli))),
        program(plane, python, monkeypatch),
    ):
        assert {row["key"]["name"] for row in answer["items"]} == set(expected)
    assert len(page.locator(".grid tbody tr").all()) == len(expected)
