"""Old backups go, and of their files those that no backup names that stays.

Nobody may make a backup in the place meanwhile. It may end anywhere, and be begun again: a backup loses its index
first, and from then on is none; what is left of it, and of backups that were cut short, goes with the next pruning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from epochal.errors import Conflict, NotFound
from epochal.snapshots.backup_format import BACKUPS, Backups, Index
from epochal.snapshots.backup_verification import verify_backup

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
