"""Is a backup whole? Every file of its lists is there and has its checksum, and lists and snapshots name no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from epochal.contracts.catalog import ManifestReference
from epochal.errors import Conflict, EpochalError, NewerFormat, NotFound
from epochal.snapshots.backup_format import BACKUPS, Backups, Index
from epochal.snapshots.copying import check_all
from epochal.snapshots.verification import Verification


@dataclass(frozen=True)
class Damage:
    """A file that is not as it should be. ``path``: in the backups' place."""

    path: str
    detail: str


@dataclass(frozen=True)
class BackupReport:
    """``problems``: what could not be copied when the backup was made."""

    snapshots: int
    files: int
    bytes: int
    damages: tuple[Damage, ...]
    problems: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        return not self.damages and not self.problems


def verify_backup(
    backups: Backups, index: Index, *, quick: bool, progress: Callable[[str], None] = lambda said: None
) -> BackupReport:
    """``quick``: files by their sizes. Raises ``NewerFormat``, ``SnapshotError`` where the place cannot be listed."""
    found: dict[str, str] = {}
    roots: list[ManifestReference] = []
    for table in index.tables:
        try:
            for row in backups.read_part(table.part):
                if table.name == "epochs" and (reference := _snapshot(row)) is not None:
                    roots.append(reference)
        except NewerFormat:
            raise
        except (EpochalError, OSError, EOFError, ValueError) as error:
            found[table.part.path] = str(error)
    try:
        files = backups.listed(index)
    except (EpochalError, OSError, EOFError, ValueError) as error:
        found[index.files.path] = str(error)
        files = []
    sizes = {entry.path: entry.bytes for entry in backups.files.entries()}
    for file, detail in check_all(backups.files, sizes, files, quick, progress):
        found[_stored(backups, file.path)] = detail
    # Checksums of all that is listed are known by now: here it is whether manifests can be read, and name no more.
    for finding in Verification(backups.files, roots, quick=True, progress=progress).run().findings:
        found.setdefault(_stored(backups, finding.path), finding.detail)
    listed = {file.path for file in files}
    damages = tuple(Damage(path, found[path]) for path in sorted(found))
    return BackupReport(len(roots), len(listed), sum(file.bytes for file in files), damages, index.problems)


def _snapshot(row: dict[str, object]) -> ManifestReference | None:
    """The snapshot of an epoch that can be read, by the backed-up catalog."""
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
    """``kept``, ``removed``: backups, newest first. ``files``: paths that no kept one names, together ``bytes``."""

    kept: tuple[Index, ...]
    removed: tuple[Index, ...]
    files: tuple[str, ...]
    bytes: int


def plan_pruning(backups: Backups, keep: int, before: datetime | None, progress: Progress) -> Pruning:
    """What would go: all but the ``keep`` newest, at least one, and of these what was made ``before``.

    Raises ``NotFound`` where there is no backup; ``Conflict`` when none of those that stay is whole, by the sizes of
    its files; ``FileCorrupt``, ``FileMissing`` where a list of files cannot be read: nobody knows what is needed then.
    """
    found = sorted((backups.index(id) for id in backups.ids()), key=lambda index: (index.created_at, index.id))
    if not found:
        raise NotFound(f"{backups.place.url} holds no backup: there is nothing to prune.")
    newest_first = found[::-1]
    old = {index.id for index in newest_first[keep:] if before is None or index.created_at < before}
    kept = tuple(index for index in newest_first if index.id not in old)
    removed = tuple(index for index in newest_first if index.id in old)
    if removed:
        _check_one_is_whole(backups, kept, progress)
    progress("looking which files are needed")
    needed = {file.path for index in kept for file in backups.listed(index)}
    unneeded = [file for file in backups.files.entries() if file.path not in needed]
    return Pruning(kept, removed, tuple(file.path for file in unneeded), sum(file.bytes for file in unneeded))


def prune(backups: Backups, plan: Pruning, progress: Progress) -> None:
    """Carry it out, oldest backup first. Raises ``SnapshotError``, and what ``progress`` does, which is called
    often."""
    for index in reversed(plan.removed):
        progress(f"removing the backup of {index.created_at:%Y-%m-%d %H:%M} UTC")
        backups.remove(index.id)
    whole = set(backups.ids())
    for id in sorted({path.split("/")[1] for path in backups.place.list(BACKUPS)} - whole):
        progress(f"removing what is left of {id}")
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
        f"None of the {len(kept)} backups that would stay is whole, so that nothing was deleted. `epochal backup "
        "verify` says what is wrong; make another backup first, or keep more."
    )
