"""The invariants of histories: each detects its violation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.service.availability.judging import Application, Journal, Operations
from tests.service.availability.listening import Event, Listener

GOOD = Application(
    attempts=[(1, "ended", None)],
    epochs={1: ("committed", "a"), 2: ("aborted", None)},
    steps=[("b/1", "started", "prepared"), ("b/1", "prepared", "committed"), ("b/2", "started", "aborted")],
    sink={1: "a"},
)
LINES: list[dict[str, Any]] = [
    {"what": "started"},
    {"what": "prepared", "epoch": 1, "sha256": "a"},
    {"what": "committed", "epoch": 1},
]
DONE = Operations({"o": ("export", "succeeded", None)}, [("o", "running", "succeeded")], {"flights": {"s"}})


def test_a_correct_history_has_no_problems() -> None:
    assert list(GOOD.problems(Journal(LINES), killed=0)) == []
    assert list(DONE.problems(["o"], {"flights": ["s"]})) == []


@pytest.mark.parametrize(
    ("application", "lines", "killed", "expected"),
    [
        (replace(GOOD, attempts=[1, 2]), LINES, 0, "2 attempts"),
        (GOOD, LINES, 1, "1 attempts, and 1 drivers"),
        (GOOD, [*LINES, {"what": "started"}], 0, "2 drivers were started"),
        (GOOD, [*LINES, {"what": "ended", "message": "fenced"}], 0, "fenced"),
        (GOOD, [*LINES, {"what": "other content", "epoch": 1}], 0, "other content"),
        (replace(GOOD, epochs={1: ("prepared", "a")}), LINES, 0, "stays prepared"),
        (replace(GOOD, epochs={1: ("committed", "b")}, sink={1: "b"}), LINES, 0, "prepared as a, and is b"),
        (replace(GOOD, epochs={}, sink={}), LINES, 0, "is lost"),
        (replace(GOOD, sink={}), LINES, 0, "the sink shows"),
        (replace(GOOD, sink={1: "a", 2: "b"}), LINES, 0, "the sink shows"),
        (replace(GOOD, steps=[("b/1", "committed", "aborted")]), LINES, 0, "from committed to aborted"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_violated_invariants_of_an_application_are_reported(
    application: Application, lines: list[dict[str, Any]], killed: int, expected: str
) -> None:
    assert any(expected in problem for problem in application.problems(Journal(lines), killed))


def test_missing_and_duplicate_events_are_reported() -> None:
    listener = Listener([], "", "flights", 1)
    started, committed = Event(1, "epoch", {"epoch": 1, "state": "started"}), {"epoch": 1, "state": "committed"}
    listener.events = [started, Event(2, "epoch", committed)]
    assert list(listener.problems([1])) == []
    assert any("[2] are missing" in problem for problem in listener.problems([1, 2]))
    assert any("[2] are missing" in problem for problem in listener.problems({1: "a", 2: "b"}))
    for wrong in ([started, Event(3, "epoch", committed)], [started, started, Event(2, "epoch", committed)]):
        listener.events = wrong
        assert any("numbers" in problem for problem in listener.problems([1]))


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        (replace(DONE, rows={}), "is lost"),
        (replace(DONE, steps=DONE.steps * 2), "ended 2 times"),
        (replace(DONE, rows={"o": ("export", "running", None)}, steps=[]), "is running"),
        (replace(DONE, rows={"o": ("export", "failed", "why")}), "is failed: why"),
        (replace(DONE, savepoints={}), "lost its savepoints"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_violated_invariants_of_operations_are_reported(operations: Operations, expected: str) -> None:
    assert any(expected in problem for problem in operations.problems(["o"], {"flights": ["s"]}))
