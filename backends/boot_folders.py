"""Local folders of state that is not synced to disk: valid until the next boot, named by their content."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from socket import gethostname
from stat import S_IWGRP, S_IWOTH
from typing import NamedTuple
from uuid import uuid4

from epochal.contracts.state import StateTaskScope
from epochal.errors import SnapshotError
from epochal.snapshots.store import SnapshotStore
from epochal.state.key_codec import FORM

MOST_HOST_CHARACTERS = 48
"""Maximum length of the host's name in the name of a cache."""


class _CacheName(NamedTuple):
    file: str
    inode: int
    name: str


_names: dict[str, _CacheName] = {}


def boot_folder(parent: Path) -> Path:
    """Return the folder below ``parent`` for this boot of the machine, writable by its owner only. Creating it deletes
    the folders of other boots.

    Raises ``SnapshotError`` if it belongs to another user, whose content cannot be trusted.
    """
    folder = parent / _boot()
    if folder.is_dir() and folder.stat().st_mode & (S_IWGRP | S_IWOTH):
        throw_away(folder)
    if not folder.is_dir():
        parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        for other in parent.iterdir():
            if other.name != folder.name:
                throw_away(other)
    if (owner := folder.stat().st_uid) != os.geteuid():
        raise SnapshotError(
            f"The cache folder {folder} belongs to user {owner}; this process runs as user {os.geteuid()}. Configure "
            "a cache folder for each user, or delete this one: it contains no data that cannot be rebuilt."
        )
    return folder


def cache_name(directory: str) -> str:
    """Return the name of the cache below ``directory``, which the first caller chooses: host and a random part."""
    known = _names.get(directory)
    if known is not None:
        with suppress(FileNotFoundError):
            if os.stat(known.file).st_ino == known.inode:
                return known.name
    file = boot_folder(Path(directory) / "name") / "name"
    if not file.exists():
        chosen = file.with_name(uuid4().hex)
        chosen.write_text(f"{gethostname()[:MOST_HOST_CHARACTERS]}-{chosen.name[:8]}")
        try:
            os.link(chosen, file)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links: the last of several callers chooses
            os.replace(chosen, file)
        chosen.unlink(missing_ok=True)
    found = _names[directory] = _CacheName(str(file), file.stat().st_ino, file.read_text())
    return found.name


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # other operating systems: a folder per process
        return f"process-{os.getpid()}"


def throw_away(folder: Path) -> None:
    """Rename a folder, so that it disappears atomically, then delete it."""
    aside = folder.with_name(f"{folder.name}.{uuid4().hex[:8]}.discarded")
    try:
        os.rename(folder, aside)
    except OSError:
        aside = folder
    shutil.rmtree(aside, ignore_errors=True)


def cache_identity(store: SnapshotStore, scope: StateTaskScope) -> str:
    """Name of a folder: hash of everything that determines a local store's content, except its mark."""
    parts = [
        f"keys of form {FORM}",
        store.url,
        scope.epoch.application,
        scope.epoch.branch,
        scope.owner,
        str(scope.max_parallelism),
    ]
    parts += [table.model_dump_json() for table in scope.tables]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
