"""``gc``, ``verify`` and ``store copy``: the snapshot store as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.failures import ExitCode
from epochal.cli.formatting import Column, Listing
from epochal.cli.options import DatabaseUrl, Home, Json, Store, Url, Wait, location
from epochal.cli.output import Output
from epochal.cli.session import connected
from epochal.client.models import Amount, Collection, CollectionPlan, Verification
from epochal.wire.bodies import read

app = typer.Typer()
store_app = typer.Typer(help="Move the snapshot store.", no_args_is_help=True)


FILES_SHOWN = 20


@app.command()
def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the files that would be deleted, with reasons.")
    ] = False,
    grace: Annotated[
        float | None,
        typer.Option(
            "--grace", min=0, metavar="SECONDS", help="Keep files younger than this.  \\[default: the setting grace]"
        ),
    ] = None,
    foreign: Annotated[
        list[str] | None,
        typer.Option(
            "--foreign",
            metavar="FOLDER",
            help="Also delete this folder, which the catalog does not reference. Repeatable.",
        ),
    ] = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Delete files that no retained snapshot needs (requires an admin token). The control plane also does this
    hourly."""
    with connected(url, as_json) as session:
        store = session.client.store
        if dry_run:
            with session.output.busy("Planning"):
                plan = store.plan_collection(grace, foreign or ())
            session.output.result(plan, plan_view(plan))
            return
        operation = store.collect(grace, foreign or ())
        if not wait:
            session.output.result(operation, Text(f"Collection started as operation {operation.id}."))
            return
        operation = session.wait(operation, "Collecting")
        session.output.result(operation, collected_view(read(Collection, operation.result)))


@app.command()
def verify(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[APP]", help="Verify the snapshots of this application.  \\[default: all snapshots]"),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", help="Verify this store by its manifests, without a catalog."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Compare sizes only, not checksums.")] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Rewrite what can be restored byte for byte: base files and manifests stored in the catalog.",
        ),
    ] = False,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Check that every file that snapshots need exists and is intact. Exit code 1 if a file is missing or damaged."""
    if store is not None:
        if name is not None or url is not None:
            raise typer.BadParameter(
                "--store cannot be combined with APP or --url: the store is read without a control plane.",
                param_hint="--store",
            )
        # Imported here because Arrow slows down the start of every command.
        from epochal.cli.local_store import verify_store

        _exit(verify_store(store, Output.make(as_json), _verified_view, quick=quick, repair=repair))
        return
    with connected(url, as_json) as session:
        operation = session.client.store.verify(name, quick=quick, repair=repair)
        if not wait:
            session.output.result(operation, Text(f"Verification started as operation {operation.id}."))
            return
        operation = session.wait(operation, "Verifying")
        found = read(Verification, operation.result)
        session.output.result(operation, _verified_view(found))
    _exit(found.sound)


@store_app.command("copy")
def copy_store(
    to: Annotated[
        str,
        typer.Option("--to", metavar="URL", help="The new store: an empty folder, or an empty prefix of a bucket."),
    ],
    home: Home = None,
    database_url: DatabaseUrl = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Copy the store to another place, and switch the installation to it. Requires that no control plane, query node or
    driver runs. An interrupted copy continues when the command is repeated; until it is complete, the installation uses
    the old store."""
    from epochal.cli import local_store

    local_store.copy(
        location(to),
        Output.make(as_json),
        settings={"home": home, "database_url": database_url, "store": store},
    )


def _exit(sound: bool) -> None:
    if not sound:
        raise typer.Exit(int(ExitCode.FAILED))


def plan_view(plan: CollectionPlan) -> RenderableType:
    """View of a collection plan: deletable and kept files with reasons, and some of the files."""
    parts = _summary(plan.needed, plan.reasons, plan.spared, plan.foreign, "would be deleted")
    if plan.files:
        files = Listing(Column("file", flexible=True), Column("size", numeric=True), Column("why"))
        for file in plan.files[:FILES_SHOWN]:
            files.add(file.path, formatting.size(file.bytes), file.why)
        parts += [Text(), files]
    if plan.total.files > FILES_SHOWN:
        parts.append(Text(f".. and {plan.total.files - FILES_SHOWN} more; --json lists up to 1,000", style="dim"))
    total = f"{plan.total.files} files, {formatting.size(plan.total.bytes)}, would be deleted"
    snapshots = f"; {len(plan.snapshots)} snapshots would be marked as expired" if plan.snapshots else ""
    kept = f"Grace period: {formatting.minutes(plan.grace_seconds)}."
    return Group(*parts, *_problems(plan.problems), Text(f"\n{total}{snapshots}. {kept}"))


def collected_view(collected: Collection) -> RenderableType:
    """View of a collection: deleted and kept files with reasons."""
    deleted = collected.deleted
    amount = f"{deleted.files} files, {formatting.size(deleted.bytes)}"
    kept = f"Grace period: {formatting.minutes(collected.grace_seconds)}."
    said = f"\n{amount} deleted; {collected.snapshots} snapshots expired. {kept}"
    parts = _summary(collected.needed, collected.reasons, collected.spared, collected.foreign, "deleted")
    return Group(*parts, *_problems(collected.problems), Text(said))


def _verified_view(verified: Verification) -> RenderableType:
    """View of a verification: damaged files, the snapshots that need them, and remedies."""
    parts: list[RenderableType] = []
    for finding in verified.findings:
        state = Text(" repaired", style="green") if finding.repaired else Text(f" {finding.trouble}", style="bold red")
        newest = f"{finding.harmed} snapshots, up to {finding.harms[-1].branch}/{finding.harms[-1].epoch}"
        parts += [
            Text.assemble(finding.path, state),
            Text(f"  {finding.detail}; needed by {newest}", style="dim"),
            Text(f"  {finding.remedy}"),
        ]
    if verified.found and not verified.sound:
        intact = ", ".join(f"{key.branch}/{key.epoch}" for key in verified.intact) or "none"
        parts.append(Text(f"Newest intact snapshots: {intact}."))
    amount = f"{verified.files.files} files, {formatting.size(verified.files.bytes)}"
    checked = f"{amount}, of {verified.snapshots} snapshots"
    verdict = "intact" if verified.sound else f"{sum(not item.repaired for item in verified.findings)} damaged"
    unneeded = f"; {verified.unreferenced.files} unreferenced files" if verified.unreferenced.files else ""
    return Group(*parts, Text.assemble(f"{checked}: ", (verdict, "green" if verified.sound else "bold red"), unneeded))


def _summary(
    needed: Amount,
    reasons: Mapping[str, Amount],
    spared: Mapping[str, Amount],
    foreign: Mapping[str, Amount],
    goes: str,
) -> list[RenderableType]:
    table = Listing(Column(""), Column("files", numeric=True), Column("size", numeric=True), Column("", flexible=True))
    table.add(
        "needed", str(needed.files), formatting.size(needed.bytes), "by retained snapshots, applications and bundles"
    )
    for why, amount in reasons.items():
        table.add(Text(goes, style="yellow"), str(amount.files), formatting.size(amount.bytes), why)
    for why, amount in spared.items():
        table.add("kept", str(amount.files), formatting.size(amount.bytes), why)
    folders = [
        Text(f"foreign folder {folder}: {amount.files} files", style="dim") for folder, amount in foreign.items()
    ]
    return [table, *folders]


def _problems(problems: Sequence[str]) -> list[Text]:
    return [Text(problem, style="red") for problem in problems]
