"""Output of ``lags`` and ``events``, without a control plane."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

from rich.console import Console

from epochal.cli.activity import event_line, lag_table
from epochal.client.models import ApplicationLag, Event, SourceLag

NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


def drawn(lags: list[ApplicationLag]) -> list[str]:
    console = Console(file=StringIO(), width=120)
    console.print(lag_table(lags, NOW))
    assert isinstance(console.file, StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def lag(name: str, **more: object) -> ApplicationLag:
    return ApplicationLag.model_validate({"application": name, "reported_at": NOW, "sources": {}, **more})


def test_lags_have_a_line_for_each_source_and_name_what_is_waited_for() -> None:
    behind = SourceLag(records=1200, files=None, seconds=90.04, reachable=True)
    silent = SourceLag(records=None, files=None, seconds=None, reachable=False)
    two = lag("flights", sources={"orders": behind, "prices": silent}, rows_per_second=1234.5)
    since = NOW - timedelta(seconds=90)
    blocked = lag("blocked", blocked_sinks={"out": since}, store_away_since=since)
    lines = drawn([two, blocked])
    assert lines[1] == "flights 1,234.5 rows/s orders 90.0 s, 1,200 records just now source prices"
    assert lines[2] == "prices unknown"
    assert lines[3].endswith("store (90 s ago); sink out (90 s ago)")
    assert drawn([]) == ["No applications."]


def test_an_event_is_one_line_whatever_its_texts_contain() -> None:
    at = "2024-05-01T12:00:00.123456+00:00"
    epoch = {"application": "flights", "at": at, "epoch": 7, "state": "committed", "rows_in": 1200, "rows_out": 3}
    assert event_line(Event(kind="epoch", data=epoch)) == (
        "2024-05-01 12:00:00  epoch      flights  epoch 7 committed, 1,200 rows in, 3 rows out"
    )
    failed = {
        "application": "flights",
        "at": at,
        "attempt": 2,
        "state": "failed",
        "failure": {"message": "a\x1b[2J\nb"},
    }
    line = event_line(Event(kind="execution", data=failed))
    assert "attempt 2 failed: a" in line and "\x1b" not in line and "\n" not in line
    unknown = event_line(Event(kind="new", data={"at": at, "application": None, "what": 1}))
    assert unknown.endswith("-  what 1")


def test_loads_and_sink_transactions_are_sentences() -> None:
    def line(kind: str, **data: Any) -> str:
        at = NOW.isoformat()
        named = {"application": "flights", "project": "default", "at": at, **data}
        return event_line(Event(kind=kind, data=named)).partition("flights  ")[2]

    since = (NOW - timedelta(seconds=90)).isoformat()
    behind = {"records": 1200, "files": None, "seconds": 90.0, "reachable": True}
    away = {"records": 0, "files": None, "seconds": None, "reachable": False}
    load = {
        "reported_at": NOW.isoformat(),
        "sources": {"orders": behind, "prices": away},
        "rows_per_second": 1234.5,
        "blocked_sinks": {"out": since},
        "store_away_since": None,
        "of_a_later_version": 1,
    }
    assert line("load", **load) == (
        "1,234.5 rows/s, orders is behind by 90.0 s, 1,200 records, waits for sink out (90 s ago); source prices"
    )
    ended = {**load, "reported_at": None, "sources": {}, "rows_per_second": None, "blocked_sinks": {}}
    assert line("load", **ended) == "no driver runs"
    assert line("transaction", state="blocked", sink="out", blocked_since="2024-05-01T12:00:00+00:00") == (
        "sink out is blocked since 2024-05-01 12:00:00"
    )
    assert line("transaction", state="free", sink="out", blocked_since=None) == "sink out is free"
    decided = {"sink": "out", "epoch": 7, "action": "abort", "by": "ada", "message": None}
    assert line("transaction", state="decided", **decided) == "sink out, epoch 7: abort by ada"
