"""``epochs``: the epochs of an application."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.formatting import Column, Listing
from epochal.cli.options import Json, Limit, Name, Url
from epochal.cli.session import connected
from epochal.client import Epoch
from epochal.contracts.conditions import Trigger
from epochal.contracts.measurements import EpochDurations, MeasuredStep, TaskStep
from epochal.wire.snapshots import FoldedRange

app = typer.Typer()

_TRIGGERS: dict[Trigger, str] = {
    "input": "input",
    "due": "due time",
    "in_flight": "records in flight",
    "command": "command",
    "drain": "end of input",
}
_LOOK = {"started": "yellow", "prepared": "cyan", "committed": "green", "aborted": "red"}


@app.command()
def epochs(
    name: Name,
    limit: Limit = 20,
    state: Annotated[
        str | None,
        typer.Option("--state", help="Show only epochs in this state: started, prepared, committed or aborted."),
    ] = None,
    timing: Annotated[
        bool, typer.Option("--timing", help="Show the seconds of each step of the epochs, E1 to E7 and T1 to T3.")
    ] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List an application's epochs, newest first, with counts, times and reasons of aborts."""
    with connected(url, as_json) as session:
        epochs = session.client.application(name).epochs
        records = epochs.list(limit, state)
        session.output.result(records, timing_table(records) if timing else epoch_table(records))
        if any(newer.epoch - older.epoch > 1 for newer, older in pairwise(records)):
            for folded in epochs.folded():
                if records[-1].epoch < folded.first < records[0].epoch:
                    session.output.note(_folded_line(folded))


def _folded_line(folded: FoldedRange) -> str:
    epochs, until = f"Epochs {folded.first:,} to {folded.last:,}", f"{folded.committed_until:%Y-%m-%d %H:%M} UTC"
    if not folded.committed:
        return f"{epochs} were aborted until {until}."
    some = f", of which {folded.aborted:,} were aborted, were" if folded.aborted else " were"
    sums = f"{folded.rows_in:,} rows in, {folded.rows_out:,} rows out"
    return f"{epochs}{some} committed until {until}. Only sums are retained: {sums}."


def _left_out(rows: Mapping[str, int]) -> str:
    return formatting.count(sum(rows.values())) if rows else ""


def _least_watermark(record: Epoch) -> str:
    """The lowest watermark. ``show`` and the JSON document have all watermarks."""
    fires = [marks.fire for marks in record.watermarks.values() if marks.fire is not None]
    return min(fires).strftime("%Y-%m-%d %H:%M:%S") if fires else ""


def epoch_table(records: list[Epoch]) -> RenderableType:
    if not records:
        return Text("No epochs.", style="dim")
    table = Listing(
        Column("epoch", numeric=True),
        Column("state"),
        Column("rows in", numeric=True),
        Column("rows out", numeric=True),
        Column("changed", numeric=True, optional=True),
        Column("delta", numeric=True, optional=True),
        Column("took", numeric=True),
        Column("attempt", numeric=True, optional=True),
        Column("opened for", optional=True),
        Column("in flight", numeric=True, optional=True),
        Column("late", numeric=True, optional=True),
        Column("rejected", numeric=True, optional=True),
        Column("timers dropped", numeric=True, optional=True),
        Column("watermark", optional=True),
        Column("next due", optional=True),
        Column("ended", numeric=True),
        Column("why", flexible=True),
    )
    for record in records:
        took = None if record.prepared_at is None else (record.prepared_at - record.started_at).total_seconds()
        table.add(
            Text(str(record.epoch), style="bold"),
            Text(record.state, style=_LOOK[record.state]),
            formatting.count(record.rows_in),
            formatting.count(record.rows_out),
            formatting.count(record.state_rows),
            formatting.size(record.state_bytes),
            "" if took is None else f"{took:.2f} s",
            str(record.attempt),
            ", ".join(_TRIGGERS[trigger] for trigger in record.opened_for),
            "" if record.in_flight is None else formatting.count(sum(record.in_flight.values())),
            _left_out(record.late_rows),
            _left_out(record.rejected_rows),
            _left_out(record.dropped_timers),
            _least_watermark(record),
            "" if record.next_due is None else formatting.due(record.next_due),
            Text(formatting.age(record.committed_at or record.prepared_at or record.started_at), style="dim"),
            Text("" if record.failure is None else record.failure.message.partition("\n")[0], style="red"),
        )
    return table


_STEPS: tuple[MeasuredStep, ...] = ("E1", "E2", "E3", "E4", "E5", "E6", "E7")
_TASK_STEPS: tuple[TaskStep, ...] = ("T1", "T2", "T3")


def timing_table(records: list[Epoch]) -> RenderableType:
    """Seconds of each step; of T1 to T3 in the slowest task. A step that has not ended or was not measured is empty."""
    if not records:
        return Text("No epochs.", style="dim")
    table = Listing(
        Column("epoch", numeric=True),
        Column("state"),
        *(Column(step, numeric=True) for step in _STEPS),
        *(Column(f"slowest {step}", numeric=True, optional=True) for step in _TASK_STEPS),
    )
    for record in records:
        durations = record.durations or EpochDurations()
        slowest = {step: seconds.longest for step, seconds in durations.tasks.items()}
        table.add(
            Text(str(record.epoch), style="bold"),
            Text(record.state, style=_LOOK[record.state]),
            *(_seconds(durations.steps.get(step)) for step in _STEPS),
            *(_seconds(slowest.get(step)) for step in _TASK_STEPS),
        )
    return table


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f} s"
