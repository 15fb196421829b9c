"""Is a backup whole? Every file of its lists is there and has its checksum, and lists and snapshots name no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from epochal.contracts.catalog import ManifestReference
from epochal.errors import EpochalError, NewerFormat
from epochal.snapshots.backup_format import Backups, Index
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
