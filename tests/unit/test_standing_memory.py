"""Remembered values of standing queries across pauses, gaps and drops; HAVING."""

from __future__ import annotations

import json
from typing import Any

from tests.kit.lives import Life
from tests.kit.standing import BEGIN
from tests.kit.standing_lives import (
    Commands,
    life,
    minute,
)

REMEMBERS = "SELECT device, count(*) AS n, remember(n) AS before GROUP BY device{} WINDOW '10 minutes'"


def results(life: Life, query: int | None = None) -> dict[float, Any]:
    """Values by the window's start, in minutes."""
    rows = [row for row in life.all_of("out") if query in (None, row["query"])]
    return {(row["window_start"] - BEGIN).total_seconds() / 60: json.loads(row["values"]) for row in rows}


def test_a_query_remembers_the_previous_window_of_a_group() -> None:
    with life() as alive:
        commands = Commands(alive)
        commands.add(REMEMBERS.format(""))
        jumps = commands.add(REMEMBERS.format(" HAVING n > try_multiply(2, remember(n))"))
        commands.go(minute(1, 2, 11))
        # Several windows close in one epoch, with a gap: the last window with rows is remembered.
        commands.go(minute(12, 21, 51, 52, 53))
        commands.go(minute(70))
        assert results(alive, 1) == {
            0: {"n": 2, "before": None},
            10: {"n": 2, "before": 2},
            20: {"n": 1, "before": 2},
            50: {"n": 3, "before": 1},
        }
        # HAVING removes results, without an effect on remembered values.
        assert results(alive, jumps) == {50: {"n": 3, "before": 1}}
        commands.order("drop", 1)
        commands.go(minute(71))
        assert {row["query"] for row in alive.state("queries.before")} == {jumps}


def test_remembered_values_are_deleted_after_thirty_windows() -> None:
    with life() as alive:
        commands = Commands(alive)
        commands.add(REMEMBERS.format(""))
        commands.go(minute(1))
        commands.go(minute(301))
        commands.go(minute(611))
        commands.go(minute(621))
        commands.go(minute(1_000))
        assert {start: row["before"] for start, row in results(alive).items()} == {0: None, 300: 1, 610: None, 620: 1}
        assert alive.state("queries.before") == []


def test_a_resumed_query_ignores_earlier_windows() -> None:
    with life() as alive:
        commands = Commands(alive)
        query = commands.add(REMEMBERS.format(""))
        commands.go(minute(1, 11))
        commands.order("pause", query)
        commands.go(minute(21))
        commands.order("resume", query)
        commands.go(minute(31, 41, 51))
        assert {start: row["before"] for start, row in results(alive).items()} == {0: None, 30: None, 40: 1}


def test_a_branch_keeps_remembered_values_of_its_snapshot() -> None:
    with life() as alive:
        commands = Commands(alive)
        commands.add(REMEMBERS.format(""))
        commands.go(minute(1, 11))
        snapshot = alive.manifests[-1].epoch
        commands.go(minute(12, 13, 21))
        assert [row["values"] for row in alive.state("queries.before")] == ['{"n": 3}']
        alive.continue_from(snapshot, "other")
        branch = Commands(alive)
        # The rows after the snapshot are read again, with one more row.
        branch.go(minute(14, 31))
        assert results(alive) == {10: {"n": 4, "before": 1}, 20: {"n": 1, "before": 4}}


def test_a_result_with_an_error_is_shown_regardless_of_having() -> None:
    with life(groups=1) as alive:
        commands = Commands(alive)
        commands.add("SELECT sum(user) AS total, count(*) AS n HAVING n > 100 WINDOW '10 minutes'")
        commands.add(
            "SELECT device, count(*) AS n, remember(n) AS before GROUP BY device HAVING n > 100 WINDOW '10 minutes'"
        )
        commands.go({**row, "user": 2**63 - 1, "device": str(n)} for n, row in enumerate(minute(1, 2)))
        commands.go({**row, "user": 1} for row in minute(11, 31))
        found = {(row["query"], row["values"], row["error"]) for row in alive.all_of("out")}
        assert found == {
            (1, '{"total":null,"n":2}', "total leaves the range of bigint"),
            (2, None, "the window has more than 1 groups; group by fewer columns, or filter"),
        }
