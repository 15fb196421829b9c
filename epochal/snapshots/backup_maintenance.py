"""Verification and pruning of backups.

A backup is sound if all listed files exist with their checksums, and its snapshots need no other files. Pruning removes
old backups and the files that no remaining backup needs. No backup may be created during pruning. Pruning can be
interrupted and repeated: it removes the index of a backup first, and the next pruning removes the rest of incomplete
backups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from epochal.contracts.catalog import ManifestReference
from epochal.errors import Conflict, EpochalError, NewerFormat, NotFound, StoreUnavailable
from epochal.snapshots.backup_format import BACKUPS, Backups, Index
from epochal.snapshots.copying import check_all
from epochal.snapshots.verification import Verification


@dataclass(frozen=True)
class Damage:
    """A missing or changed file. ``path``: relative to the location of the backups."""

    path: str
    detail: str


@dataclass(frozen=True)
class BackupReport:
    """Result of a verification. ``problems``: files that could not be copied when the backup was created."""

    snapshots: int
    files: int
    bytes: int
    damages: tuple[Damage, ...]
    problems: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        return not self.damages and not self.problems


def verify_backup(
    backups: Backups, index: Index, *, quick: bool, progress: Callable[[str], None] = lambda text: None
) -> BackupReport:
    """Verify a backup. ``quick``: compare only sizes. Raises ``NewerFormat``, ``StoreUnavailable``, and
    ``SnapshotError`` if listing fails."""
    found: dict[str, str] = {}
    roots: list[ManifestReference] = []
    for table in index.tables:
        try:
            for row in backups.read_part(table.part):
                if table.name == "epochs" and (reference := _snapshot(row)) is not None:
                    roots.append(reference)
        except (NewerFormat, StoreUnavailable):
            raise
        except (EpochalError, OSError, EOFError, ValueError) as error:
            found[table.part.path] = str(error)
    try:
        files = backups.listed(index)
    except StoreUnavailable:
        raise
    except (EpochalError, OSError, EOFError, ValueError) as error:
        found[index.files.path] = str(error)
        files = []
    sizes = {entry.path: entry.bytes for entry in backups.files.entries()}
    for file, detail in check_all(backups.files, sizes, files, quick, progress):
        found[_stored(backups, file.path)] = detail
    # Checksums of listed files have been checked. This checks that manifests can be read and name only listed files.
    for finding in Verification(backups.files, roots, quick=True, progress=progress).run().findings:
        found.setdefault(_stored(backups, finding.path), finding.detail)
    listed = {file.path for file in files}
    damages = tuple(Damage(path, found[path]) for path in sorted(found))
    return BackupReport(len(roots), len(listed), sum(file.bytes for file in files), damages, index.problems)


def _snapshot(row: dict[str, object]) -> ManifestReference | None:
    """The snapshot of an epoch's row; ``None`` if it is not readable."""
    if row["state"] not in ("prepared", "committed") or row["collected_at"] is not None:
        return None
    return ManifestReference.model_validate(
        {
            "branch": row["branch"],
            "epoch": row["epoch"],
            "path": row["manifest_path"],
            "sha256": row["manifest_sha256"],
        }
    )


def _stored(backups: Backups, path: str) -> str:
    return f"{backups.files.url.removeprefix(backups.place.url).lstrip('/')}/{path}"


Progress = Callable[[str], None]


@dataclass(frozen=True)
class Pruning:
    """Plan of a pruning. ``kept``, ``removed``: backups, newest first. ``files``: paths that no kept backup names, with
    the total size ``bytes``."""

    kept: tuple[Index, ...]
    removed: tuple[Index, ...]
    files: tuple[str, ...]
    bytes: int


def plan_pruning(backups: Backups, keep: int, before: datetime | None, progress: Progress) -> Pruning:
    """Plan to remove all backups except for the ``keep`` newest, at least one, limited to those created ``before``.

    Raises ``NotFound`` without a backup; ``Conflict`` if none of the kept backups is sound, by the sizes of its files;
    ``FileCorrupt``, ``FileMissing`` if a list of files cannot be read, so that the needed files are unknown.
    """
    found = sorted((backups.index(id) for id in backups.ids()), key=lambda index: (index.created_at, index.id))
    if not found:
        raise NotFound(f"{backups.place.url} holds no complete backup to prune.")
    newest_first = found[::-1]
    old = {index.id for index in newest_first[keep:] if before is None or index.created_at < before}
    kept = tuple(index for index in newest_first if index.id not in old)
    removed = tuple(index for index in newest_first if index.id in old)
    if removed:
        _check_one_is_whole(backups, kept, progress)
    progress("listing needed files")
    needed = {file.path for index in kept for file in backups.listed(index)}
    unneeded = [file for file in backups.files.entries() if file.path not in needed]
    return Pruning(kept, removed, tuple(file.path for file in unneeded), sum(file.bytes for file in unneeded))


def prune(backups: Backups, plan: Pruning, progress: Progress) -> None:
    """Carry out a plan, oldest backup first. Raises ``SnapshotError``, and errors of ``progress``, which is called
    often."""
    for index in reversed(plan.removed):
        progress(f"removing the backup of {index.created_at:%Y-%m-%d %H:%M} UTC")
        backups.remove(index.id)
    whole = set(backups.ids())
    for id in sorted({path.split("/")[1] for path in backups.place.list(BACKUPS)} - whole):
        progress(f"removing the incomplete backup {id}")
        backups.remove(id)
    for number, path in enumerate(plan.files):
        progress(f"{number} of {len(plan.files)} files removed")
        backups.files.delete(path)
        backups.files.remove_empty_folder(path.rpartition("/")[0])


def _check_one_is_whole(backups: Backups, kept: tuple[Index, ...], progress: Progress) -> None:
    for index in kept:
        if verify_backup(backups, index, quick=True, progress=progress).is_sound:
            return
    raise Conflict(
        f"None of the {len(kept)} backups to keep is sound, so that nothing was deleted. See `epochal backup "
        "verify`; create another backup first, or keep more."
    )
