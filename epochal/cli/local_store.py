"""Commands that need no control plane: ``backup list | verify | restore``, ``store copy`` and ``verify --store``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.directories import writable
from epochal.cli.formatting import Column, Listing
from epochal.cli.output import Output
from epochal.cli.settings import Arguments
from epochal.client.models import Verification as StoreVerification
from epochal.errors import InvalidInput
from epochal.service.commands.restore import Restore, RestoreReport
from epochal.service.commands.store_copy import StoreCopy, StoreCopyReport
from epochal.service.domain.store_answers import verification_answer
from epochal.snapshots.backup_format import Backups, Index
from epochal.snapshots.backup_maintenance import BackupReport, verify_backup
from epochal.snapshots.discovery import discover
from epochal.snapshots.store import SnapshotStore
from epochal.snapshots.verification import Verification
from epochal.wire.bodies import read


def show_all(place: str, output: Output) -> None:
    """Raises ``NewerFormat``, ``FileCorrupt``, ``SnapshotError``."""
    with output.busy("Reading"):
        backups = Backups(place)
        found = sorted(map(backups.index, backups.ids()), key=lambda index: (index.created_at, index.id), reverse=True)
    if not found:
        output.result([], Text(f"{backups.place.url} contains no backup."))
        return
    table = Listing(
        Column("backup"),
        Column("created"),
        Column("applications", numeric=True, optional=True),
        Column("files", numeric=True),
        Column("MB", numeric=True),
        Column("version", optional=True),
        Column("not backed up", numeric=True),
    )
    for index in found:
        moment, size = f"{index.created_at:%Y-%m-%d %H:%M:%S} UTC", f"{index.stored_bytes / 1e6:.1f}"
        numbers = str(len(index.applications)), str(index.stored_files), size
        table.add(index.id, moment, *numbers, index.version, str(len(index.problems)))
    output.result([index.model_dump(mode="json", exclude={"tables", "files"}) for index in found], table)


def verify(place: str, id: str | None, output: Output, *, quick: bool) -> bool:
    """Return whether the backup is intact. Raises ``NotFound``, ``NewerFormat``, ``SnapshotError``."""
    with output.busy("Verifying"):
        backups = Backups(place)
        index = backups.index(id)
        report = verify_backup(backups, index, quick=quick)
    about = {"backup": index.id, "created_at": index.created_at, "sound": report.is_sound}
    output.result({**about, **vars(report)}, _verified(index, report))
    return report.is_sound


def restore(
    place: str,
    id: str | None,
    output: Output,
    *,
    settings: Mapping[str, Any],
    start: bool,
    quick: bool,
) -> None:
    """Raises the errors of ``Restore.run``. ``settings``: options, by name of the setting; ``None``: not given."""
    options = {name: value for name, value in settings.items() if value is not None}
    found = Arguments(options, None).load().settings
    writable(found.data, "--home", 0o700)
    with output.busy("Restoring"):
        report = Restore(found, Backups(place), id, start=start, quick=quick).run()
    output.result(report, _restored(report, found.admin_token_file))
    for problem in report.problems:
        output.warn(f"Not in the backup: {problem}")
    for branch, application in report.unknown_branches:
        output.warn(
            f"The store contains branch {branch} of {application}, which was created after the backup and is not in "
            "the restored catalog. If it is the result of a rollback, sinks do not show the output of the restored "
            "branch: see docs/operations/backup.md."
        )


def copy(target: str, output: Output, *, settings: Mapping[str, Any]) -> None:
    """Raises the errors of ``StoreCopy.run``. ``settings``: as for :func:`restore`."""
    options = {name: value for name, value in settings.items() if value is not None}
    found = Arguments(options, None).load().settings
    with output.busy("Copying") as progress:
        report = StoreCopy(found, target, progress=progress).run()
    output.result(report, _copied(report))
    if report.unmarked is not None:
        output.warn(
            f"The old store could not be marked as replaced: {report.unmarked} The catalog refuses it in any case; do "
            "not restore a backup into it."
        )


def _copied(report: StoreCopyReport) -> RenderableType:
    amount = (
        f"{report.files} files ({formatting.size(report.bytes)}), of which {report.copied_files} "
        f"({formatting.size(report.copied_bytes)}) were copied now"
    )
    head = f"The interrupted copy to {report.target} is complete" if report.resumed else f"{report.target}: {amount}"
    return Group(
        Text(f"{head}."),
        Text(f"The installation uses this store now, and refuses {report.source}."),
        Text(f"Next: set EPOCHAL_STORE={report.target} for all control planes and query nodes, and start them."),
        Text("Check the copy with `epochal verify`; then the old store can be deleted."),
    )


def _verified(index: Index, report: BackupReport) -> RenderableType:
    said = f"{report.snapshots} snapshots, {report.files} files, {report.bytes / 1e6:.1f} MB"
    if report.is_sound:
        return Text(f"Backup {index.id} of {index.created_at:%Y-%m-%d %H:%M:%S} UTC is intact: {said}.")
    table = Listing(Column("file", flexible=True), Column("trouble", flexible=True, folds=True))
    for damage in report.damages:
        table.add(damage.path, damage.detail)
    remedy = "Delete the damaged files and create another backup, which copies them again if the store still has them."
    lines = [Text(f"Not backed up: {problem}", style="yellow") for problem in report.problems]
    head = Text(f"Backup {index.id} is damaged: {len(report.damages)} files ({said}).", style="bold red")
    return Group(head, table, Text(remedy), *lines) if report.damages else Group(head, *lines)


def _restored(report: RestoreReport, token_file: Path) -> RenderableType:
    if report.resumed:
        return Text(f"The interrupted restore of backup {report.backup} is complete.")
    table = Listing(
        Column("application"),
        Column("branch", flexible=True),
        Column("epoch", numeric=True),
        Column("now", flexible=True, folds=True),
    )
    for row in report.applications:
        parts = ["starts" if row.started else "stopped"]
        if row.newer:
            parts.append(f"{row.newer} epochs from the store are newer than the backup")
        if row.unknown_code:
            parts.append(f"code of these epochs is missing ({row.unknown_code[0][:12]}..): upgrade to it, then start")
        table.add(row.name, row.branch, "-" if row.epoch is None else str(row.epoch), "; ".join(parts))
    lines = [
        f"Backup {report.backup} is restored: {report.copied_files} files ({report.copied_bytes / 1e6:.1f} MB) copied.",
        f"All tokens are revoked; the new admin token is in {token_file}.",
        (
            "Next: `epochal up`, then `epochal start APP`. An application whose sinks show later epochs does not "
            "start; the error explains how to continue."
        ),
    ]
    return Group(Text(lines[0]), table, *(Text(line) for line in lines[1:]))


def verify_store(
    url: str, output: Output, view: Callable[[StoreVerification], RenderableType], *, quick: bool, repair: bool
) -> bool:
    """Verify a store by its manifests. Return whether it is intact.

    ``view``: how the command prints a verification. Raises ``InvalidInput`` if there is no store, ``SnapshotError``,
    ``StorageFull``.
    """
    store = SnapshotStore(url)
    with output.busy("Verifying"):
        discovered = discover(store)
        if not discovered.roots and not discovered.unreadable:
            raise InvalidInput(f"{url} contains no snapshots. Specify the root of a snapshot store.")
        report = Verification(store, discovered.roots, quick=quick).run(repair=repair)
    answer = verification_answer(report).model_dump(mode="json")
    document = {**answer, "unreadable": list(discovered.unreadable), "cut_off": discovered.cut_off}
    output.result(document, view(read(StoreVerification, answer)))
    for path in discovered.unreadable:
        output.warn(f"This version cannot read the manifest {path}. Its files are not checked.")
    if discovered.cut_off:
        output.note(f"{discovered.cut_off} manifests belong to collected snapshots or to aborted attempts.")
    return report.is_sound and not discovered.unreadable
