"""``gc`` and ``verify``: the snapshot store as a whole."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from epochal.cli.failures import ExitCode
from epochal.cli.options import Json, Url, Wait
from epochal.cli.output import Output
from epochal.cli.session import connected
from epochal.cli.store_view import collected_view, plan_view, verified_view
from epochal.client.models import Collected, Verified
from epochal.wire.bodies import read

app = typer.Typer()


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would go, and why; delete nothing.")] = False,
    grace: Annotated[
        float | None, typer.Option("--grace", min=0, metavar="SECONDS", help="What is younger stays.  [default: 3600]")
    ] = None,
    foreign: Annotated[
        list[str] | None,
        typer.Option("--foreign", metavar="FOLDER", help="Also delete this unknown folder. Repeatable."),
    ] = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Delete what no retained snapshot needs (needs an admin token). The control plane does it hourly by itself."""
    with connected(url, as_json) as session:
        store = session.client.store
        if dry_run:
            with session.output.busy("Planning"):
                plan = store.plan_collection(grace, foreign or ())
            session.output.result(plan, plan_view(plan))
            return
        operation = store.collect(grace, foreign or ())
        if not wait:
            session.output.result(operation, Text(f"The collection has begun, as operation {operation.id}."))
            return
        operation = session.wait(operation, "Collecting")
        session.output.result(operation, collected_view(read(Collected, operation.result)))


@app.command()
def verify(
    name: Annotated[
        str | None, typer.Argument(metavar="[APP]", help="An application's snapshots; without it: all.")
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="A store without its catalog, by its manifests alone.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Sizes only, no checksums.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write again what can be, byte for byte: bases, and known manifests.")
    ] = False,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Check that every file that snapshots need is there and whole; exit code 1 when one is not."""
    if store is not None:
        if name is not None or url is not None:
            raise typer.BadParameter("Give --store alone: it is read without a control plane.", param_hint="--store")
        # Imported here only: Arrow makes every command slower.
        from epochal.cli.offline import verify_store

        _exit(verify_store(store, Output.make(as_json), quick=quick, repair=repair))
        return
    with connected(url, as_json) as session:
        operation = session.client.store.verify(name, quick=quick, repair=repair)
        if not wait:
            session.output.result(operation, Text(f"The verification has begun, as operation {operation.id}."))
            return
        operation = session.wait(operation, "Verifying")
        found = read(Verified, operation.result)
        session.output.result(operation, verified_view(found))
    _exit(found.sound)


def _exit(sound: bool) -> None:
    if not sound:
        raise typer.Exit(int(ExitCode.FAILED))
