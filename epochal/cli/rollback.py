"""``rollback``: return an application to an earlier snapshot."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from epochal.cli.formatting import Column, Listing
from epochal.cli.options import AcceptChanged, AcceptPartial, Json, Name, Url, Wait, acceptance, moment
from epochal.cli.session import connected
from epochal.client.models import RollbackPlan

app = typer.Typer()

_TIME = (
    "Roll back to the latest snapshot at this time, such as 2030-01-01T00:00:00+00:00; local time without an offset."
)


@app.command()
def rollback(
    name: Name,
    epoch: Annotated[int | None, typer.Option("--epoch", min=0, help="Roll back to this epoch.")] = None,
    savepoint: Annotated[
        str | None, typer.Option("--savepoint", "-s", metavar="NAME", help="Roll back to this savepoint.")
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="NAME", help="Roll back to the snapshot with this tag.")
    ] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help=_TIME)] = None,
    move_aside: Annotated[
        bool, typer.Option("--move-aside", help="Hide the output of discarded epochs in folders from readers.")
    ] = False,
    accept_changed: AcceptChanged = None,
    accept_partial: AcceptPartial = None,
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Message recorded in the lineage and the audit log.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan without rolling back.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Roll an application back to a snapshot, after showing the output of later epochs in its sinks."""
    then, accepted = moment(at), acceptance(accept_changed, accept_partial)
    with connected(url, as_json) as session:
        handle = session.client.application(name).rollback
        plan = handle.plan(epoch=epoch, savepoint=savepoint, tag=tag, at=then, move_aside=move_aside, **accepted)
        if dry_run:
            session.output.result(plan, plan_view(plan))
            return
        if not yes:
            session.output.notes.print(plan_view(plan))
            typer.confirm(f"Roll {name} back to epoch {plan.to.epoch}?", abort=True, err=True)
        # Use the epoch of the plan, since a time or a tag may denote another snapshot by now.
        operation = handle.to(
            epoch=plan.to.epoch, move_aside=move_aside, message=message, confirm=plan.confirm, **accepted
        )
        if wait:
            operation = session.wait(operation, f"Rolling {name} back")
        done = "is being rolled back" if operation.state == "running" else "is"
        branch = (operation.result or {}).get("branch")
        where = f" on branch {branch}" if branch else ""
        ends = "" if plan.restarts else "; start it to continue"
        session.output.result(operation, Text(f"{name} {done} at epoch {plan.to.epoch}{where}{ends}."))


def plan_view(plan: RollbackPlan) -> RenderableType:
    """View of a rollback plan."""
    now = "its start" if plan.now is None else f"epoch {plan.now.epoch}"
    lines = [Text(f"{plan.application} is rolled back from {now} to epoch {plan.to.epoch} ({plan.to.branch}).")]
    if plan.epochs:
        later = " and the epochs until it has stopped" if plan.restarts else ""
        span = f"{plan.epochs} epochs ({plan.first} to {plan.last}){later}"
        lines.append(Text(f"{span} are discarded. They can be read until they expire."))
    if plan.uncounted:
        lines.append(Text(f"{plan.uncounted} of them are no longer readable. Their output in sinks is not counted."))
    if plan.version_then is not None and plan.version_then != plan.version:
        lines.append(
            Text(f"Version {plan.version_then} created the snapshot; version {plan.version} continues from it.")
        )
    if plan.lost is not None:
        lost = (
            f"Sinks show epochs up to {plan.lost} that are missing in this catalog, which was restored from a backup. "
        )
        lines.append(Text(f"{lost}Their input is read again, and epoch numbers continue at {plan.lost + 1}."))
    if plan.restarts:
        lines.append(Text("The application is running: it is stopped and started again."))
    if not plan.sinks:
        return Group(*lines, Text("No sink shows output of discarded epochs."))
    table = Listing(
        Column("sink"),
        Column("target", flexible=True),
        Column("epochs", numeric=True),
        Column("rows", numeric=True),
        Column("rule"),
    )
    for sink in plan.sinks:
        shown = "?" if sink.shows is None else f"to {sink.shows}"
        epochs = shown if sink.epochs is None else str(sink.epochs)
        table.add(sink.sink, sink.target, epochs, "?" if sink.rows is None else str(sink.rows), sink.rule)
    said = dict.fromkeys((sink.kind, sink.explanation) for sink in plan.sinks)
    restored = [Text(f"{sink.sink}: {sink.restore}") for sink in plan.sinks if sink.restore is not None]
    return Group(*lines, table, *(Text(f"{kind}: {text}") for kind, text in said), *restored)
