"""``backup create | list | verify | prune | restore``."""

from __future__ import annotations

import os
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from epochal.cli.failures import ExitCode
from epochal.cli.formatting import Column, Listing
from epochal.cli.options import DatabaseUrl, Home, Json, Store, Url, Wait
from epochal.cli.output import Output
from epochal.cli.session import connected
from epochal.client.models import Backup, Pruning
from epochal.wire.bodies import read

app = typer.Typer(
    help="Back the catalog and the store up, look whether a backup is whole, remove old ones, restore one.",
    no_args_is_help=True,
)

From = Annotated[str, typer.Option("--from", metavar="URL", help="Where backups are: a folder, or any fsspec URL.")]
Id = Annotated[str | None, typer.Option("--backup", metavar="ID", help="Which one.  [default: the newest]")]


@app.command()
def create(
    to: Annotated[
        str, typer.Option("--to", metavar="URL", help="A folder on the control plane's machine, or any fsspec URL.")
    ],
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Copy the catalog, and all files and code that it names; what is in the place already is not copied again.
    Applications go on meanwhile. Fails (1) where something could not be copied."""
    with connected(url, as_json) as session:
        operation = session.client.store.back_up(_absolute(to))
        if not wait:
            session.output.result(operation, Text(f"The backup has begun, as operation {operation.id}."))
            return
        operation = session.wait(operation, "Backing up")
        backed_up = read(Backup, operation.result)
        session.output.result(operation, _created(backed_up))
        for problem in backed_up.problems:
            session.output.warn(problem)
    if backed_up.problems:
        raise typer.Exit(int(ExitCode.FAILED))


@app.command("list")
def list_backups(source: From, as_json: Json = False) -> None:
    """The backups in a place, newest first. Needs no control plane."""
    from epochal.cli import local_store

    local_store.show_all(_absolute(source), Output.make(as_json))


@app.command()
def prune(
    source: Annotated[
        str, typer.Option("--from", metavar="URL", help="A folder on the control plane's machine, or any fsspec URL.")
    ],
    keep: Annotated[int | None, typer.Option("--keep", min=1, metavar="N", help="The newest N stay.")] = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0, metavar="DAYS", help="What is younger stays.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would go; delete nothing.")] = False,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Remove old backups, and the files that none of those names that stay. With --keep and --older-than a backup goes
    when both say so; the newest one stays in any case, and nothing goes unless one of those that stay is whole."""
    if keep is None and older_than is None:
        raise typer.BadParameter("Say what is to stay: --keep, --older-than, or both.")
    seconds = None if older_than is None else older_than * 86_400
    place = _absolute(source)
    with connected(url, as_json) as session:
        store = session.client.store
        if dry_run:
            with session.output.busy("Planning"):
                plan = store.plan_pruning(place, keep=keep, older_than_seconds=seconds)
            session.output.result(plan, _pruned(plan, "would go", "would stay"))
            return
        operation = store.prune_backups(place, keep=keep, older_than_seconds=seconds)
        if not wait:
            session.output.result(operation, Text(f"The pruning has begun, as operation {operation.id}."))
            return
        operation = session.wait(operation, "Pruning")
        session.output.result(operation, _pruned(read(Pruning, operation.result), "went", "stay"))


@app.command()
def verify(
    source: From,
    backup: Id = None,
    quick: Annotated[bool, typer.Option("--quick", help="Compare sizes only, not checksums.")] = False,
    as_json: Json = False,
) -> None:
    """Look whether a backup is whole: its index, every file, and all that its snapshots name. Needs no control plane.
    Fails (1) when something is missing or damaged, (3) when there is no backup."""
    # Imported here only: Arrow makes every command slower.
    from epochal.cli import local_store

    if not local_store.verify(_absolute(source), backup, Output.make(as_json), quick=quick):
        raise typer.Exit(int(ExitCode.FAILED))


@app.command()
def restore(
    source: From,
    backup: Id = None,
    home: Home = None,
    database_url: DatabaseUrl = None,
    store: Store = None,
    start: Annotated[
        bool, typer.Option("--start", help="Have applications that ran at the time of the backup run again.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Take files that the store still has for right by their sizes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Restore a backup into an empty database, and an empty store or what is left of the backed-up one. Needs no
    control plane; none may run on them. A restore that was cut short goes on when it is called again."""
    from epochal.cli import local_store

    local_store.restore(
        _absolute(source),
        backup,
        Output.make(as_json),
        settings={"home": home, "database_url": database_url, "store": store},
        start=start,
        quick=quick,
    )


def _absolute(place: str) -> str:
    return place if urlsplit(place).scheme else os.path.abspath(place)


def _created(backed_up: Backup) -> RenderableType:
    said = (
        f"Backup {backed_up.id} of {backed_up.at:%Y-%m-%d %H:%M:%S} UTC is in {backed_up.to}: "
        f"{backed_up.snapshots} snapshots, "
        f"{backed_up.files.files} files ({backed_up.files.bytes / 1e6:.1f} MB), of which {backed_up.copied.files} "
        f"({backed_up.copied.bytes / 1e6:.1f} MB) were copied now."
    )
    return Text(said)


def _pruned(pruned: Pruning, gone: str, stays: str) -> RenderableType:
    amount = f"{pruned.deleted.files} files ({pruned.deleted.bytes / 1e6:.1f} MB)"
    head = Text(
        f"{len(pruned.removed)} backups {gone}, with {amount} that no other one needs; {len(pruned.kept)} {stays}."
    )
    table = Listing(Column("backup"), Column("of"), Column("then"))
    for backup in pruned.kept:
        table.add(backup.id, f"{backup.at:%Y-%m-%d %H:%M:%S} UTC", stays)
    for backup in pruned.removed:
        table.add(backup.id, f"{backup.at:%Y-%m-%d %H:%M:%S} UTC", gone)
    return Group(head, table)
