"""Views of applications: the list for ``ps`` and the page for ``show``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.formatting import Column, Listing
from epochal.cli.snapshots import savepoint_table
from epochal.client.models import (
    Application,
    Epoch,
    Execution,
    ImportOrigin,
    Load,
    Placement,
    Restarts,
    Savepoint,
    StateColumn,
    StateTable,
    ValueColumn,
)
from epochal.contracts.catalog import ShownWatermarks
from epochal.contracts.measurements import OperatorLoad, StragglerMove
from epochal.wire.configuration import ApplicationConfiguration

_LOOK = {
    "created": ("○", "dim"),
    "starting": ("◐", "yellow"),
    "running": ("●", "green"),
    "stopping": ("◑", "yellow"),
    "stopped": ("○", "dim"),
    "failed": ("✗", "bold red"),
}


_FROM = {"memory": "memory", "disk": "the machine's cache", "store": "the store"}


SINK = "sink "
"""Beginning of a sink's place among counts of rejected rows; names of declarations have no space."""
EVENT_TIME = {"watermarks", "late_rows", "rejected_rows", "dropped_timers", "next_due"}
"""Fields of an epoch that describe event time."""


class ListedApplication(Application):
    """An application with the current attempt of its execution."""

    attempt: int | None = None


def application_table(applications: Sequence[ListedApplication], now: datetime | None = None) -> RenderableType:
    if not applications:
        return Text("No applications. Create one with `epochal submit FILE --name NAME`.", style="dim")
    table = Listing(
        Column("name", flexible=True),
        Column("state"),
        Column("epoch", numeric=True),
        Column("committed"),
        Column("attempt", numeric=True),
        Column("detail", flexible=True),
    )
    for application in applications:
        head = application.head
        table.add(
            Text(application.name, style="bold"),
            state_text(application.state),
            "–" if head is None else str(head.epoch),
            "–" if head is None else formatting.age(head.committed_at, now),
            "–" if application.attempt is None else str(application.attempt),
            _detail(application, now),
        )
    return table


def application_page(
    application: Application,
    execution: Execution | None,
    tables: Sequence[StateTable],
    savepoints: Sequence[Savepoint],
    head: Epoch | None = None,
    now: datetime | None = None,
    load: Load | None = None,
) -> RenderableType:
    """The page of one application. ``head`` is its latest committed epoch."""
    scaling = None if load is None else autoscaling_words(load)
    parts: list[RenderableType] = [_facts(application, execution, head, now, scaling)]
    if load is not None and load.operators:
        parts += [Text(), load_section(load, now)]
    if head is not None and _places(head):
        parts += [Text(), _event_time(head)]
    if head is not None:
        rejects = {place: rows for place, rows in head.rejected_rows.items() if place.startswith(SINK)}
        parts += [Text(f"{place}: rows rejected in epoch {head.epoch}: {rows:,}") for place, rows in rejects.items()]
    if tables:
        parts += [Text(), _state(tables)]
    if savepoints:
        parts += [Text(), savepoint_table(savepoints, now)]
    failure = application.failure
    if failure is None and application.restarts is not None:
        failure = application.restarts.failure
    if failure is not None:
        parts += [Text(), Text.assemble((f"{failure.type}: ", "bold red"), failure.message)]
        if failure.traceback:
            parts.append(Text(failure.traceback.rstrip(), style="dim"))
    return Group(*parts)


def placement_page(placement: Placement, now: datetime | None = None) -> RenderableType:
    """The machine of each subtask in the latest epoch."""
    if placement.epoch is None:
        return Text(f"{placement.application} has not reported an epoch.", style="dim")
    machines = sorted({machine for found in placement.machines.values() for machine in found})
    table = Listing(Column("machine", flexible=True), *(Column(name) for name in placement.machines))
    for machine in machines:
        mine = ([subtask for subtask, at in enumerate(found) if at == machine] for found in placement.machines.values())
        table.add(machine, *(", ".join(map(str, subtasks)) or "–" for subtasks in mine))
    moves = "" if placement.moves == 0 else f", {formatting.count(placement.moves)} moves of subtasks"
    read = ", ".join(f"{formatting.size(size)} from {_FROM[origin]}" for origin, size in placement.read_bytes.items())
    reported = f"epoch {placement.epoch}, as of {formatting.age(placement.reported_at, now)}{moves}"
    parts: list[RenderableType] = [Text(f"{reported}; state read: {read or 'none'}", style="dim")]
    if placement.unplaced is not None:
        parts.append(Text(f"Spark runs subtasks anywhere: {placement.unplaced}.", style="yellow"))
    moved = (Text(f"Moved in epoch {move.epoch}: {_moved(move)}.", style="dim") for move in placement.moved_stragglers)
    return Group(*parts, *([table] if machines else []), *moved)


def _moved(move: StragglerMove) -> str:
    exchanged = "" if move.exchanged_with is None else f", in exchange for subtask {move.exchanged_with}"
    return f"the straggler {move.operator}, subtask {move.subtask}, from {move.origin} to {move.destination}{exchanged}"


def ended(application: Application) -> str:
    """Result of a bounded run, to follow the application's name."""
    at = "has not committed an epoch" if application.head is None else f"is at epoch {application.head.epoch}"
    return f"{at}: {application.detail or application.state}"


def state_text(state: str) -> Text:
    glyph, style = _LOOK.get(state, ("?", ""))
    return Text(f"{glyph} {state}", style=style)


def _detail(application: Application, now: datetime | None) -> Text:
    if application.failure is not None and application.state == "failed":
        return Text(f"{application.failure.type}: {application.failure.message}".partition("\n")[0], style="red")
    restarts = application.restarts
    if restarts is not None and application.state == "starting":
        said = f"{_restarts(restarts, now)}: {restarts.failure.type}: {restarts.failure.message}"
        return Text(said.partition("\n")[0], style="red")
    parts = [application.detail] if application.detail else []
    if restarts is not None:
        parts.append(f"{_restarts(restarts, now)} ({restarts.failure.type})")
    if application.parent is not None:
        parts.append(f"fork of {application.parent.application} at {application.parent.epoch}")
    if application.imported_from is not None:
        parts.append(f"imported from {_origin(application, application.imported_from)}")
    if application.shadow:
        parts.append("shadow")
    return Text(" · ".join(parts), style="dim")


def _origin(application: Application, origin: ImportOrigin) -> str:
    return formatting.imported_from(origin.application, origin.epoch, origin.project, application.project)


def _restarts(restarts: Restarts, now: datetime | None) -> str:
    failed = f"{restarts.failures} of at most {restarts.allowed + 1} failures"
    if restarts.next_attempt_at is None:
        return failed
    seconds = (restarts.next_attempt_at - (now or datetime.now(UTC))).total_seconds()
    return f"{failed}; next attempt {'now' if seconds < 1 else f'in {seconds:.0f} s'}"


def _facts(
    application: Application, execution: Execution | None, head: Epoch | None, now: datetime | None, scaling: str | None
) -> Table:
    facts: list[tuple[str, RenderableType]] = [("state", state_text(application.state))]
    if application.detail:
        facts.append(("detail", Text(application.detail)))
    if application.restarts is not None:
        last = f"last failure {formatting.age(application.restarts.failed_at, now)}"
        facts.append(("restarts", Text(f"{_restarts(application.restarts, now)}, {last}", style="red")))
    if application.head is not None:
        committed = formatting.age(application.head.committed_at, now)
        drained = " (drained: all input has ended)" if application.head.drained else ""
        facts.append(("epoch", Text(f"{application.head.epoch}, committed {committed}{drained}")))
    if head is not None and head.next_due is not None:
        facts.append(("next due", Text(formatting.due(head.next_due))))
    if head is not None and head.in_flight:
        held = ", ".join(f"{name} {formatting.count(records)}" for name, records in head.in_flight.items())
        facts.append(("in flight", Text(held)))
    facts.append(("branch", Text(application.branch)))
    if application.parent is not None:
        parent = application.parent
        facts.append(("fork of", Text(f"{parent.application} at epoch {parent.epoch} of {parent.branch}")))
    if application.imported_from is not None:
        facts.append(("imported from", Text(_origin(application, application.imported_from))))
    if application.shadow:
        facts.append(("shadow", Text("yes: no sink is written")))
    facts.append(("version", Text(f"{application.version}, artifact {formatting.code(application.artifact)}")))
    facts.append(("parameters", Text(formatting.values(application.parameters) or "none")))
    facts.append(("configuration", Text(_configuration(application))))
    if scaling is not None:
        facts.append(("autoscaling", Text(scaling)))
    if execution is not None:
        facts.append(("execution", Text(f"{execution.id}, attempt {execution.attempt}, {execution.state}")))
        if execution.heartbeat_at is not None and execution.state in ("starting", "running", "stopping"):
            facts.append(("heartbeat", Text(formatting.age(execution.heartbeat_at, now))))
    facts.append(("created", Text(formatting.age(application.created_at, now))))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("application", Text(application.name, style="bold"))
    for name, value in facts:
        grid.add_row(name, value)
    return grid


def _configuration(application: Application) -> str:
    """Settings that differ from the defaults."""
    defaults = ApplicationConfiguration().model_dump(mode="json")
    different = {name: value for name, value in application.configuration.items() if value != defaults.get(name)}
    return formatting.values(different) or "defaults"


def _event_time(head: Epoch) -> Listing:
    """Watermarks by declaration of event time and by operator, at the epoch."""
    view = Listing(
        Column("event time"),
        Column("watermark"),
        Column("late before"),
        Column("late rows", numeric=True, optional=True),
        Column("rejected rows", numeric=True, optional=True),
        Column("dropped timers", numeric=True, optional=True),
    )
    unknown = ShownWatermarks()
    for place in _places(head):
        marks = head.watermarks.get(place, unknown)
        left_out = (counts.get(place) for counts in (head.late_rows, head.rejected_rows, head.dropped_timers))
        view.add(
            Text(place, style="bold"),
            "ended" if marks.ended else formatting.moment(marks.fire) + (" (idle)" if marks.idle else ""),
            formatting.moment(marks.late),
            *("" if number is None else formatting.count(number) for number in left_out),
        )
    return view


def _places(head: Epoch) -> list[str]:
    """Declarations of event time and operators with something to show."""
    every = {*head.watermarks, *head.late_rows, *head.rejected_rows, *head.dropped_timers}
    return sorted(place for place in every if not place.startswith(SINK))


def _state(tables: Sequence[StateTable]) -> Listing:
    view = Listing(
        Column("state table"),
        Column("kind", optional=True),
        Column("rows", numeric=True),
        Column("key", flexible=True),
        Column("value", flexible=True),
    )
    for table in tables:
        view.add(
            Text(table.table, style="bold"),
            _kind(table.kind, table.scope),
            formatting.count(table.rows),
            _columns([*table.key, *table.sub_key]),
            Text(", ".join(_value(column) for column in table.value if not column.internal), style="dim"),
        )
    return view


def _value(column: ValueColumn) -> str:
    """``mean double since epoch 6``: a column that counts rows from that epoch on."""
    return f"{column.name} {column.type}" + ("" if column.since is None else f" since epoch {column.since}")


def _kind(kind: str, scope: str) -> str:
    return kind if scope == "keyed" else f"{scope} {kind}"


def _columns(columns: Sequence[StateColumn]) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in columns)


def load_section(load: Load, now: datetime | None = None) -> RenderableType:
    """Operators by load. ``load`` has at least one operator."""
    view = Listing(
        Column("operator"),
        Column("subtasks", numeric=True, optional=True),
        Column("rows", numeric=True),
        Column("busy", numeric=True),
        Column("skew", numeric=True, optional=True),
        Column("rows in latest epoch", numeric=True, optional=True),
    )
    for name, operator in load.operators.items():
        view.add(
            Text(name, style="bold"),
            "" if operator.subtasks in (0, load.parallelism) else formatting.count(operator.subtasks),
            formatting.count(operator.rows),
            f"{operator.busy_seconds:.2f} s",
            "" if operator.skew is None else f"{operator.skew:.2f}",
            formatting.count(operator.epoch_rows),
        )
    parts: list[RenderableType] = [Text(_headline(load, now), style="dim"), view]
    parts += [Text(line, style="dim") for line in _ends(load)]
    parts += [
        Text(line, style="yellow") for name, operator in load.operators.items() for line in _named(name, operator)
    ]
    return Group(*parts)


def _ends(load: Load) -> Iterator[str]:
    """Rates of sources and sinks."""
    for kind, found in (("source", load.sources), ("sink", load.sinks)):
        for name, each in found.items():
            if each.rows is not None and load.seconds > 0:
                yield f"{kind} {name}: {each.rows / load.seconds:,.1f} rows/s"


def autoscaling_words(load: Load) -> str | None:
    """The autoscaling decision; ``None`` if autoscaling is off or the application does not run."""
    if load.autoscaling is None:
        return None
    decision = load.autoscaling
    aims = [] if decision.parallelism is None else [str(decision.parallelism)]
    aims += [f"{name} {number}" for name, number in decision.parallelisms.items()]
    words = f"rescale to {', '.join(aims)}" if aims else "no change"
    return f"{words}: {decision.reason}"


def _headline(load: Load, now: datetime | None) -> str:
    lag = "" if load.lag_seconds is None else f", {load.lag_seconds:.0f} s behind"
    return (
        f"busy for {load.busy_share:.0%} of {load.seconds:.0f} s by {load.parallelism} subtasks{lag}, "
        f"as of {formatting.age(load.reported_at, now)}"
    )


def _named(name: str, operator: OperatorLoad) -> Iterator[str]:
    if operator.skewed and operator.largest is not None and operator.skew is not None:
        yield (
            f"{name}, subtask {operator.largest.subtask}: skewed, {formatting.count(operator.largest.rows)} of "
            f"{formatting.count(operator.rows)} rows, {operator.skew:.2f} times the mean"
        )
    for straggler in operator.stragglers:
        yield (
            f"{name}, subtask {straggler.subtask}: a straggler, busy for {straggler.busy_seconds:.2f} s over "
            f"{formatting.count(straggler.rows)} rows"
        )
