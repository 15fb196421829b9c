"""Command line output for applications, epochs and state, without a control plane."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from epochal.cli import formatting
from epochal.cli.application_view import ListedApplication, application_page, application_table
from epochal.cli.epochs import epoch_table, timing_table
from epochal.cli.state_view import Shown, diff_rows_view, scan_view
from epochal.cli.timing_view import HELP, PartTime, Timing, TimingPage, timing_of
from epochal.client.models import (
    Application,
    AutoscalingDecision,
    DiffRow,
    Epoch,
    Head,
    Load,
    Parent,
    Scan,
    StateValue,
)
from epochal.contracts.catalog import Failure, ShownDue, ShownWatermarks
from epochal.contracts.measurements import OperatorLoad, SubtaskLoad
from tests.kit.workers import ROOT

NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


def application(name: str, **more: object) -> ListedApplication:
    facts = {
        "name": name,
        "state": "running",
        "branch": f"{name}-1",
        "version": 1,
        "artifact": "0" * 64,
        "parameters": {},
        "configuration": {},
        "shadow": False,
        "revision": "1",
        "project": "default",
        **dict.fromkeys(("detail", "head", "parent", "imported_from", "execution", "failure", "restarts")),
        "created_at": NOW,
        "updated_at": NOW,
        **more,
    }
    return ListedApplication.model_validate(facts)


def listing(width: int) -> list[str]:
    applications = [
        application("flights", head=Head(branch="flights-1", epoch=118, committed_at=NOW, drained=False), attempt=2),
        application("what-if", parent=Parent(application="flights", branch="flights-1", epoch=103), shadow=True),
        application("broken", state="failed", failure=Failure(type="SinkError", message="No space left.\nmore")),
        application("new", state="created", detail="[not markup]"),
    ]
    return [line.rstrip() for line in drawn(application_table(applications, NOW), width).splitlines()]


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_has_one_line_per_application(width: int) -> None:
    lines = listing(width)
    assert len(lines) == 5
    assert lines[0].split() == ["NAME", "STATE", "EPOCH", "COMMITTED", "ATTEMPT", "DETAIL"]
    assert lines[1].split() == ["flights", "●", "running", "118", "just", "now", "2"]
    assert lines[2].endswith("fork of flights at 103 · shadow")
    assert lines[3].endswith("SinkError: No space left.")
    assert lines[4].endswith("[not markup]")


def test_restart_loops_show_their_cause_in_the_list_and_on_the_page() -> None:
    restarts = {
        "failures": 3,
        "allowed": 5,
        "failure": {"type": "source-error", "message": "The folder is missing.\nCreate it.", "traceback": "line 3"},
        "failed_at": NOW - timedelta(seconds=2),
        "next_attempt_at": NOW + timedelta(seconds=4),
    }
    looping = application("looping", state="starting", restarts=restarts)
    [line] = [line for line in drawn(application_table([looping], NOW), 160).splitlines() if "looping" in line]
    assert line.rstrip().endswith("3 of at most 6 failures; next attempt in 4 s: source-error: The folder is missing.")
    page = drawn(application_page(looping, None, [], [], None, NOW), 120)
    assert "3 of at most 6 failures; next attempt in 4 s, last failure 2 s ago" in page
    assert "source-error: The folder is missing.\nCreate it." in page and "line 3" in page

    retrying = application("retrying", detail="waiting for sink", restarts={**restarts, "next_attempt_at": None})
    [line] = [line for line in drawn(application_table([retrying], NOW), 160).splitlines() if "retrying" in line]
    assert line.rstrip().endswith("waiting for sink · 3 of at most 6 failures (source-error)")


def test_the_application_page_shows_the_event_time_of_the_head() -> None:
    head = Epoch(
        branch="flights-1",
        epoch=7,
        attempt=1,
        state="committed",
        started_at=NOW,
        late_rows={"hourly": 4},
        rejected_rows={"at": 12},
        dropped_timers={"reminders": 1},
        next_due=ShownDue(at=NOW, operator="hourly", clock="event", until=datetime(2013, 1, 1, 9, tzinfo=UTC)),
        watermarks={
            "at": ShownWatermarks(fire=datetime(2013, 1, 1, 8, tzinfo=UTC), idle=True),
            "hourly": ShownWatermarks(
                late=datetime(2013, 1, 1, 7, tzinfo=UTC), fire=datetime(2013, 1, 1, 7, 30, tzinfo=UTC)
            ),
            "old": ShownWatermarks(ended=True),
        },
    )
    page = drawn(application_page(application("flights"), None, [], [], head, NOW), 120)
    rows = {line.split()[0]: line.split()[1:] for line in page.splitlines() if line.strip()}
    assert rows["at"] == ["2013-01-01", "08:00:00", "(idle)", "–", "12"]
    assert rows["hourly"] == ["2013-01-01", "07:30:00", "2013-01-01", "07:00:00", "4"]
    assert rows["old"] == ["ended", "–"]
    assert rows["reminders"][-1] == "1"
    assert f"next due {NOW:%Y-%m-%d %H:%M:%S} ('hourly', event time 2013-01-01 09:00:00)" in " ".join(page.split())
    assert formatting.due(ShownDue(at=NOW, operator="reminders", clock="processing", until=NOW)) == (
        f"{NOW:%Y-%m-%d %H:%M:%S} (processing time of 'reminders')"
    )
    empty: dict[str, int] = {}
    nothing = {"late_rows": empty, "rejected_rows": empty, "dropped_timers": empty, "watermarks": {}, "next_due": None}
    without = head.model_copy(update=nothing)
    assert "event time" not in drawn(application_page(application("flights"), None, [], [], without, NOW), 120)


def test_the_application_page_names_skew_and_stragglers() -> None:
    load = Load(
        application="flights",
        reported_at=NOW - timedelta(seconds=3),
        version=1,
        parallelism=4,
        epoch=7,
        seconds=62.1,
        busy_share=0.314,
        lag_seconds=12.3,
        operators={
            "totals": OperatorLoad(
                rows=12000,
                busy_seconds=30.5,
                epoch_rows=400,
                skew=2.5,
                skewed=True,
                largest=SubtaskLoad(subtask=3, rows=7500, busy_seconds=9),
                stragglers=(SubtaskLoad(subtask=0, rows=1500, busy_seconds=15.25),),
            ),
            "idle": OperatorLoad(),
        },
        autoscaling=AutoscalingDecision(parallelism=None, reason="its subtasks were busy for 31%"),
    )
    page = drawn(application_page(application("flights"), None, [], [], None, NOW, load), 120)
    assert "autoscaling    no change: its subtasks were busy for 31%" in page
    assert "busy for 31% of 62 s by 4 subtasks, 12 s behind, as of 3 s ago" in page
    rows = {line.split()[0]: line.split()[1:] for line in page.splitlines() if line.strip()}
    assert rows["idle"] == ["0", "0.00", "s", "0"]
    assert "totals, subtask 3: skewed, 7,500 of 12,000 rows, 2.50 times the mean" in page
    assert "totals, subtask 0: a straggler, busy for 15.25 s over 1,500 rows" in page
    growing = load.model_copy(update={"autoscaling": AutoscalingDecision(parallelism=8, reason="it lags")})
    assert "to 8: it lags" in drawn(application_page(application("flights"), None, [], [], None, NOW, growing), 120)
    quiet = load.model_copy(update={"operators": {}, "autoscaling": None})
    assert "busy" not in drawn(application_page(application("flights"), None, [], [], None, NOW, quiet), 120)


def test_an_empty_list_shows_how_to_submit() -> None:
    assert "epochal submit" in drawn(application_table([]))


def test_listed_applications_have_the_type_application() -> None:
    assert isinstance(application("flights"), Application)


def drawn(view: RenderableType, width: int = 80) -> str:
    stream = StringIO()
    Console(file=stream, width=width).print(view)
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= width
    return text


BIG = 123_456_789_012


def an_epoch(**more: Any) -> Epoch:
    counts = {"rows_in": BIG, "rows_out": BIG + 1, "state_rows": BIG + 2, "state_bytes": 1 << 40}
    return Epoch.model_validate(
        {
            "branch": "flights-01JABCDEFGH",
            "epoch": 1_234_567,
            "attempt": 1234,
            "state": "committed",
            "started_at": NOW,
            "prepared_at": NOW + timedelta(seconds=1234.5),
            "committed_at": NOW,
            "failure": None,
            **counts,
            **more,
        }
    )


def test_numbers_are_not_truncated_at_80_columns() -> None:
    failed = Failure(type="sink-error", message="a long reason " * 20)
    text = drawn(epoch_table([an_epoch(), an_epoch(failure=failed)]))
    for number in ("1234567", f"{BIG:,}", f"{BIG + 1:,}", "1234.50 s"):
        assert text.count(number) == 2, text


def test_wide_epoch_tables_show_triggers() -> None:
    opened = epoch_table([an_epoch(opened_for=["input", "in_flight"]), an_epoch(opened_for=["due"])])
    wide = drawn(opened, 160)
    assert "input, records in flight" in wide and "due time" in wide
    assert "due time" not in drawn(opened, 80)


def test_the_timing_of_an_epoch_has_each_step() -> None:
    steps = {f"E{step}": float(step) for step in range(1, 7)}
    tasks = {"T1": {"longest": 1.25, "total": 2.0}}
    measured = timing_table([an_epoch(durations={"steps": steps, "tasks": tasks}), an_epoch(durations=None)])
    wide = drawn(measured, 160)
    assert [f"{step}.000 s" in wide for step in range(1, 8)] == [True] * 6 + [False]
    assert "1.250 s" in wide and "2.000 s" in drawn(measured, 80)


def timed_epochs(*seconds: float) -> list[Epoch]:
    """Epochs with these seconds of Python, newest first, and one that has not been reported."""
    parts = {"planning": 0.25, "spark": 0.5, "store": 0.25, "sink": 0.0, "protocol": 1.0}
    measured = [
        an_epoch(epoch=number, durations={"parts": {**parts, "python": found}})
        for number, found in enumerate(seconds, 7)
    ]
    return [an_epoch(epoch=99), *reversed(measured), an_epoch(epoch=1, durations={"steps": {"E1": 1.0}})]


def test_timing_shows_the_share_and_the_slowest_epoch_of_each_part() -> None:
    timing = timing_of("flights", timed_epochs(2.0, 8.0, 2.0))
    assert (timing.epochs, timing.first_epoch, timing.last_epoch, timing.dominant) == (3, 7, 9, "python")
    assert timing.parts is not None and timing.parts["python"] == PartTime(2.0, round(12 / 18, 4), 8.0, 8)
    assert timing.epoch == PartTime(4.0, 1.0, 10.0, 8)
    assert sum(each.share for each in timing.parts.values()) == pytest.approx(1.0, abs=0.001)
    lines = drawn(TimingPage(timing)).splitlines()
    assert lines[0] == "epochs 7 to 9, from the search for input to the commit"
    rows = {line.split()[0]: line.split() for line in lines[2:9]}
    assert rows["python"] == ["python", "2.000", "s", "67", "%", "█████████████▍", "8.000", "s", "8"]
    assert rows["planning"][:5] == ["planning", "0.250", "s", "4.2", "%"]
    assert rows["sink"] == ["sink", "0.000", "s", "0", "%", "0.000", "s", "9"]
    assert rows["epoch"] == ["epoch", "4.000", "s", "100", "%", "10.000", "s", "8"]
    assert "Python takes most of the time: 67 %" in " ".join(lines[9:]) and HELP in "".join(lines[9:])


@pytest.mark.parametrize("width", [40, 80, 160])
def test_timing_fits_the_terminal_and_is_ascii_without_unicode(width: int) -> None:
    page = TimingPage(timing_of("flights", timed_epochs(2.0)))
    assert "2.000 s" in drawn(page, width) and "epoch 7," in drawn(page, width)

    class Terminal(StringIO):
        encoding = "ascii"  # type: ignore[assignment]

    console = Console(file=Terminal(), width=width)
    console.print(page)
    assert isinstance(console.file, StringIO) and console.file.getvalue().isascii()


def test_timing_without_measured_epochs_says_so() -> None:
    timing = timing_of("flights", [an_epoch(), an_epoch(state="started", durations={"parts": {"spark": 1.0}})])
    assert timing == Timing("flights", 0)
    assert "No epoch of flights has been measured" in drawn(TimingPage(timing))


def test_the_help_of_timing_is_a_section_of_the_documentation() -> None:
    page, _, section = HELP.partition("#")
    headings = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("#")]
    anchors = ["".join(sign for sign in line.lower() if sign.isalnum() or sign in " -").strip() for line in headings]
    assert section in [anchor.replace(" ", "-") for anchor in anchors]


def test_state_values_are_never_truncated() -> None:
    values = {f"column_{index}": BIG * 10**index for index in range(6)} | {"total": "411522627.6744855963364485596667"}
    row = {"key": {"origin": "JFK", "destination": "LAX"}, "value": values}
    place = {"table": "delays", "branch": "main", "epoch": 3, "isolation": "read_committed", "next_cursor": None}
    page = {**place, "items": [row, row]}
    text = drawn(scan_view(Scan.model_validate(page), "flights"))
    for value in values.values():
        assert text.split().count(str(value)) == 2, text
    narrow = {**page, "items": [{"key": {"origin": "JFK"}, "value": {"flights": BIG}}]}
    assert drawn(scan_view(Scan.model_validate(narrow), "flights")).splitlines()[:2] == [
        "ORIGIN       FLIGHTS",
        f"JFK     {BIG}",
    ]


def test_long_changes_wrap_to_further_lines() -> None:
    old = {f"column_{index}": BIG + index for index in range(8)}
    new = {name: value + 10 for name, value in old.items()}
    change = {"kind": "changed", "key": {"origin": "JFK"}, "old": old, "new": new}
    text = "".join(drawn(diff_rows_view([DiffRow.model_validate(change)])).split())
    for value in (*old.values(), *new.values()):
        assert str(value) in text


def test_partial_columns_are_hidden() -> None:
    shown = Shown(frozenset({"mean_sum", "mean_count"}))
    old = {"n": 1, "mean_sum": 4, "mean_count": 2, "mean": 2.0}
    new = {"n": 2, "mean_sum": 9, "mean_count": 3, "mean": 3.0}
    row = {"key": {"k": 1}, "value": new}
    place = {"table": "t", "branch": "b", "epoch": 3, "isolation": "read_committed", "next_cursor": None}
    page = Scan.model_validate({**place, "items": [row]})
    assert shown.scan(page).items[0].value == {"n": 2, "mean": 3.0}
    changed = {"kind": "changed", "key": {"k": 1}, "old": old, "new": new}
    (change,) = shown.rows([DiffRow.model_validate(changed)])
    assert (change.old, change.new) == ({"n": 1, "mean": 2.0}, {"n": 2, "mean": 3.0})
    (added,) = shown.rows([DiffRow.model_validate({**changed, "kind": "added", "old": None})])
    assert (added.old, added.new) == (None, {"n": 2, "mean": 3.0})
    hidden = {**changed, "new": {**old, "mean_sum": 8, "mean_count": 4}}
    (kept,) = shown.rows([DiffRow.model_validate(hidden)])
    assert kept.new == hidden["new"]
    value = StateValue(table="t", key={"k": 1}, value=new, branch="b", epoch=3, isolation="read_committed")
    assert shown.lookup(value).value == {"n": 2, "mean": 3.0}
    since = {"since": dict.fromkeys(("mean_sum", "mean_count", "mean"), 3)}
    assert shown.lookup(value.model_copy(update=since)).since == {"mean": 3}
    assert shown.scan(page.model_copy(update=since)).since == {"mean": 3}
    assert (shown.lookup(value).since, shown.scan(page).since) == (None, None)
