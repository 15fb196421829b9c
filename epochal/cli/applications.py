"""``ps``, ``show``, ``start``, ``stop``, ``restart``, ``delete``, ``logs``."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.text import Text

from epochal.cli.application_view import (
    EVENT_TIME,
    ListedApplication,
    application_page,
    application_table,
    ended,
    placement_page,
)
from epochal.cli.options import AvailableNow, Drain, IfMatch, Json, Name, Url, Wait
from epochal.cli.plot_view import MOST_EPOCHS, Plot
from epochal.cli.session import connected
from epochal.cli.timing_view import TIMED_EPOCHS, TimingPage, timing_of
from epochal.client import Application, Client, Execution
from epochal.errors import NotFound

app = typer.Typer()


SavepointName = Annotated[str | None, typer.Option("--savepoint", "-s", metavar="NAME")]


@app.command()
def ps(url: Url = None, as_json: Json = False) -> None:
    """List applications with state, latest committed epoch and attempt."""
    with connected(url, as_json) as session:
        listed = [_with_attempt(session.client, application) for application in session.client.applications.list()]
        session.output.result(listed, application_table(listed))


PlacementOnly = Annotated[
    bool, typer.Option("--placement", help="Show only the machine of each subtask in the latest epoch.")
]


PlotOnly = Annotated[
    bool,
    typer.Option(
        "--plot", help="Draw the graph with its rates, and charts of the latest epochs. --json is the same as without."
    ),
]


TimingOnly = Annotated[
    bool,
    typer.Option(
        "--timing",
        help="Show only how much of the time of the latest epochs was planning, Spark, Python, the snapshot store and "
        "sinks.",
    ),
]


@app.command()
def show(
    name: Name,
    placement: PlacementOnly = False,
    plot: PlotOnly = False,
    timing: TimingOnly = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show an application: position, configuration, watermarks, state tables, savepoints and last failure."""
    chosen = [f"--{view}" for view, is_on in (("placement", placement), ("plot", plot), ("timing", timing)) if is_on]
    if len(chosen) > 1:
        raise typer.BadParameter(f"{chosen[-1]} cannot be combined with {chosen[0]}.", param_hint=chosen[-1])
    with connected(url, as_json) as session:
        handle = session.client.application(name)
        if placement:
            found = handle.placement()
            session.output.result(found, placement_page(found))
            return
        if timing:
            summary = timing_of(name, handle.epochs.list(TIMED_EPOCHS, state="committed"))
            session.output.result(summary, TimingPage(summary))
            return
        if plot and not as_json:
            session.output.results.print(Plot(handle.graph(), handle.epochs.list(MOST_EPOCHS, state="committed")))
            return
        application = handle.get()
        execution = _execution(session.client, application)
        tables, savepoints = handle.state_tables(), handle.savepoints.list()
        head = None if application.head is None else handle.epochs.get(application.head.epoch)
        load = handle.load()
        document = {
            **application.model_dump(mode="json"),
            "current_execution": None if execution is None else execution.model_dump(mode="json"),
            "state_tables": [table.model_dump(mode="json") for table in tables],
            "savepoints": [savepoint.model_dump(mode="json") for savepoint in savepoints],
            "event_time": None if head is None else head.model_dump(mode="json", include=EVENT_TIME),
            "load": load.model_dump(mode="json"),
        }
        page = application_page(application, execution, tables, savepoints, head, load=load)
        session.output.result(document, page)


@app.command()
def start(
    name: Name,
    savepoint: SavepointName = None,
    available_now: AvailableNow = False,
    drain: Drain = True,
    if_match: IfMatch = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Start a stopped application from its head or from a savepoint."""
    with connected(url, as_json) as session:
        operation = session.client.applications.start(
            name, savepoint, available_now=available_now, drain=drain, if_match=if_match
        )
        if wait and available_now:
            application = session.wait_until_processed(name)
            session.output.result(application, Text(f"{name} {ended(application)}."))
            return
        if wait:
            operation = session.wait(operation, f"Starting {name}")
        done = f"{name} is running ({_attempt(operation.result)})" if wait else f"{name} is starting"
        session.output.result(operation, Text(f"{done}."))


@app.command()
def stop(
    name: Name,
    savepoint: SavepointName = None,
    if_match: IfMatch = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Stop an application at an epoch boundary, optionally with a savepoint."""
    with connected(url, as_json) as session:
        operation = session.client.applications.stop(name, savepoint, if_match=if_match)
        if not wait:
            session.output.result(operation, Text(f"{name} is stopping."))
            return
        operation = session.wait(operation, f"Stopping {name}")
        result = operation.result or {}
        epoch = result.get("epoch")
        where = "before its first epoch" if epoch is None else f"at epoch {epoch}"
        named = f", savepoint {result['savepoint']}" if result.get("savepoint") else ""
        session.output.result(operation, Text(f"{name} is stopped {where}{named}."))


@app.command()
def restart(name: Name, if_match: IfMatch = None, wait: Wait = True, url: Url = None, as_json: Json = False) -> None:
    """Restart an application; it continues from its latest snapshot."""
    with connected(url, as_json) as session:
        operation = session.client.applications.restart(name, if_match=if_match)
        if wait:
            operation = session.wait(operation, f"Restarting {name}")
        done = f"{name} is running ({_attempt(operation.result)})" if wait else f"{name} is restarting"
        session.output.result(operation, Text(f"{done}."))


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    if_match: IfMatch = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Delete a stopped application and its history."""
    with connected(url, as_json) as session:
        if not yes:
            typer.confirm(f"Delete {name} and its snapshots?", abort=True, err=True)
        session.client.applications.delete(name, if_match=if_match)
        session.output.result({"deleted": name}, Text(f"{name} is deleted."))


@app.command()
def logs(
    name: Name,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until Ctrl-C.")] = False,
    tail: Annotated[
        int, typer.Option("--tail", "-n", min=0, help="Number of lines to show from the end of the log.")
    ] = 200,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="The log of this attempt.")] = None,
    branch: Annotated[
        str | None, typer.Option("--branch", help="The branch of the attempt; by default the newest with this number.")
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Print the driver's log. With --json and --follow: one JSON document per line."""
    with connected(url, as_json) as session:
        lines = session.client.application(name).logs(tail=tail, follow=follow, attempt=attempt, branch=branch)
        if as_json and not follow:
            session.output.document({"lines": list(lines)})
            return
        try:
            for line in lines:
                if as_json:
                    session.output.line({"line": line})
                else:
                    sys.stdout.write(line + "\n")
                    sys.stdout.flush()
        except KeyboardInterrupt:
            if not follow:
                raise


def _with_attempt(client: Client, application: Application) -> ListedApplication:
    execution = _execution(client, application)
    return ListedApplication(**dict(application), attempt=None if execution is None else execution.attempt)


def _execution(client: Client, application: Application) -> Execution | None:
    if application.execution is None:
        return None
    try:
        return client.application(application.name).executions.get(application.execution)
    except NotFound:  # deleted since the application was read
        return None


def _attempt(result: dict[str, Any] | None) -> str:
    return f"attempt {(result or {}).get('attempt', '?')}"
