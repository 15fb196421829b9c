"""``backup create | list | verify | prune | restore``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from epochal.cli.failures import ExitCode
from epochal.cli.formatting import Column, Listing
from epochal.cli.options import DatabaseUrl, Home, Json, Store, Url, Wait, location
from epochal.cli.output import Output
from epochal.cli.session import connected
from epochal.client.models import Backup, Pruning
from epochal.wire.bodies import read

app = typer.Typer(
    help="Create, list, verify, prune and restore backups of the catalog and the store.",
    no_args_is_help=True,
)

From = Annotated[
    str, typer.Option("--from", metavar="URL", help="Location of backups: a folder, or a URL (s3://bucket/backups).")
]
Id = Annotated[str | None, typer.Option("--backup", metavar="ID", help="Id of the backup.  \\[default: the newest]")]


@app.command()
def create(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL",
            help="Location of backups: a folder on the control plane's machine, or a URL (s3://bucket/backups).",
        ),
    ],
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Copy the catalog and all files and code that it references. Files that are already in the backup location are
    not copied again. Applications keep running. Exit code 1 if a file could not be copied."""
    with connected(url, as_json) as session:
        operation = session.client.store.back_up(location(to))
        if not wait:
            session.output.result(operation, Text(f"Backup started as operation {operation.id}."))
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
    """List the backups at a location, newest first. Requires no control plane."""
    from epochal.cli import local_store

    local_store.show_all(location(source), Output.make(as_json))


@app.command()
def prune(
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="URL",
            help="Location of backups: a folder on the control plane's machine, or a URL (s3://bucket/backups).",
        ),
    ],
    keep: Annotated[int | None, typer.Option("--keep", min=1, metavar="N", help="Keep the newest N backups.")] = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0, metavar="DAYS", help="Keep backups younger than this.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the backups that would be removed.")] = False,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Remove old backups and the files that only they reference. With both --keep and --older-than, a backup is removed
    if both apply. The newest backup is always kept. At least one kept backup must be intact."""
    if keep is None and older_than is None:
        raise typer.BadParameter("Specify --keep, --older-than, or both.")
    seconds = None if older_than is None else older_than * 86_400
    place = location(source)
    with connected(url, as_json) as session:
        store = session.client.store
        if dry_run:
            with session.output.busy("Planning"):
                plan = store.plan_pruning(place, keep=keep, older_than_seconds=seconds)
            session.output.result(plan, _pruned(plan, "would be removed", "would be kept"))
            return
        operation = store.prune_backups(place, keep=keep, older_than_seconds=seconds)
        if not wait:
            session.output.result(operation, Text(f"Pruning started as operation {operation.id}."))
            return
        operation = session.wait(operation, "Pruning")
        session.output.result(operation, _pruned(read(Pruning, operation.result), "removed", "kept"))


@app.command()
def verify(
    source: From,
    backup: Id = None,
    quick: Annotated[bool, typer.Option("--quick", help="Compare sizes only, not checksums.")] = False,
    as_json: Json = False,
) -> None:
    """Verify a backup: its index, every file, and all files that its snapshots reference. Requires no control plane.
    Exit code 1 if a file is missing or damaged, 3 if the backup does not exist."""
    # Imported here because Arrow slows down the start of every command.
    from epochal.cli import local_store

    if not local_store.verify(location(source), backup, Output.make(as_json), quick=quick):
        raise typer.Exit(int(ExitCode.FAILED))


@app.command()
def restore(
    source: From,
    backup: Id = None,
    home: Home = None,
    database_url: DatabaseUrl = None,
    store: Store = None,
    start: Annotated[
        bool, typer.Option("--start", help="Start the applications that ran at the time of the backup.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Compare files that the store still has by size only.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Restore a backup into an empty database and an empty store, or into what remains of the original store.
    Requires no control plane; none may use the database or the store. An interrupted restore continues when the
    command is repeated."""
    from epochal.cli import local_store

    local_store.restore(
        location(source),
        backup,
        Output.make(as_json),
        settings={"home": home, "database_url": database_url, "store": store},
        start=start,
        quick=quick,
    )


def _created(backed_up: Backup) -> RenderableType:
    said = (
        f"Backup {backed_up.id} of {backed_up.at:%Y-%m-%d %H:%M:%S} UTC in {backed_up.to}: {backed_up.snapshots} "
        f"snapshots, {backed_up.files.files} files ({backed_up.files.bytes / 1e6:.1f} MB), {backed_up.copied.files} "
        f"({backed_up.copied.bytes / 1e6:.1f} MB) copied."
    )
    return Text(said)


def _pruned(pruned: Pruning, gone: str, stays: str) -> RenderableType:
    amount = f"{pruned.deleted.files} files ({pruned.deleted.bytes / 1e6:.1f} MB)"
    head = Text(
        f"{len(pruned.removed)} backups {gone}, with {amount} that no other backup references; "
        f"{len(pruned.kept)} {stays}."
    )
    table = Listing(Column("backup"), Column("created"), Column("result"))
    for backup in pruned.kept:
        table.add(backup.id, f"{backup.at:%Y-%m-%d %H:%M:%S} UTC", stays)
    for backup in pruned.removed:
        table.add(backup.id, f"{backup.at:%Y-%m-%d %H:%M:%S} UTC", gone)
    return Group(head, table)
