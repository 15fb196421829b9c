"""``rollback``."""

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

_TIME = "When it was the latest: 2030-01-01T00:00:00+00:00; without an offset, local time."


@app.command()
def rollback(
    name: Name,
    epoch: Annotated[int | None, typer.Option("--epoch", min=0, help="To this epoch.")] = None,
    savepoint: Annotated[str | None, typer.Option("--savepoint", "-s", metavar="NAME", help="To a savepoint.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="NAME", help="To a tagged snapshot.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help=_TIME)] = None,
    move_aside: Annotated[
        bool, typer.Option("--move-aside", help="Hide from readers what folders show of the epochs left behind.")
    ] = False,
    accept_changed: AcceptChanged = None,
    accept_partial: AcceptPartial = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Why, for lineage and the audit log.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Put an application back to a snapshot; first show what its sinks have of later epochs, and ask."""
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
        # The plan's own epoch: what a time or a tag means may have changed while somebody read.
        operation = handle.to(
            epoch=plan.to.epoch, move_aside=move_aside, message=message, confirm=plan.confirm, **accepted
        )
        if wait:
            operation = session.wait(operation, f"Rolling {name} back")
        done = "is being rolled back" if operation.state == "running" else "is"
        branch = (operation.result or {}).get("branch")
        where = f" on branch {branch}" if branch else ""
        ends = "" if plan.restarts else "; start it to go on"
        session.output.result(operation, Text(f"{name} {done} at epoch {plan.to.epoch}{where}{ends}."))


def plan_view(plan: RollbackPlan) -> RenderableType:
    """A plan for people."""
    now = "its beginning" if plan.now is None else f"epoch {plan.now.epoch}"
    lines = [Text(f"{plan.application} goes from {now} back to epoch {plan.to.epoch} ({plan.to.branch}).")]
    if plan.epochs:
        later = " and those until it has stopped" if plan.restarts else ""
        span = f"{plan.epochs} epochs ({plan.first} to {plan.last}){later}"
        lines.append(Text(f"{span} are left behind, and stay readable until retention."))
    if plan.uncounted:
        lines.append(
            Text(f"{plan.uncounted} of them cannot be read any more: what sinks show of those is not counted.")
        )
    if plan.version_then is not None and plan.version_then != plan.version:
        lines.append(Text(f"Version {plan.version_then} made the snapshot; version {plan.version} goes on from it."))
    if plan.lost is not None:
        lost = (
            f"Sinks show epochs up to {plan.lost} of which this catalog knows nothing: it was restored from a backup. "
        )
        lines.append(Text(f"{lost}What they read is read once more, and numbers go on at {plan.lost + 1}."))
    if plan.restarts:
        lines.append(Text("It runs: it is stopped, and started again."))
    if not plan.sinks:
        return Group(*lines, Text("No sink shows anything of what is left behind."))
    table = Listing(
        Column("sink"),
        Column("target", flexible=True),
        Column("epochs", numeric=True),
        Column("rows", numeric=True),
        Column("then"),
    )
    for sink in plan.sinks:
        shown = "?" if sink.shows is None else f"to {sink.shows}"
        epochs = shown if sink.epochs is None else str(sink.epochs)
        table.add(sink.sink, sink.target, epochs, "?" if sink.rows is None else str(sink.rows), sink.rule)
    said = dict.fromkeys((sink.kind, sink.explanation) for sink in plan.sinks)
    return Group(*lines, table, *(Text(f"{kind}: {text}") for kind, text in said))
