"""Folders for what was never synced to disk: it cannot be trusted after a crash of the system."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path
from stat import S_IWGRP, S_IWOTH
from uuid import uuid4

from epochal.errors import SnapshotError


def boot_folder(parent: Path) -> Path:
    """The folder below ``parent`` for this boot of the machine, which nobody but its owner can write to. Those of other
    boots are thrown away when it is made.

    Raises ``SnapshotError`` where it is another user's, who could have put anything there.
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
            f"The cache folder {folder} is that of user {owner}, and this is user {os.geteuid()}. Have them use "
            "different cache folders, or remove it: nothing in it is needed."
        )
    return folder


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # no such system: then every process has its own
        return f"process-{os.getpid()}"


def throw_away(folder: Path) -> None:
    """Remove a folder at once for everyone who looks, then from the disk."""
    aside = folder.with_name(f"{folder.name}.{uuid4().hex[:8]}.discarded")
    try:
        os.rename(folder, aside)
    except OSError:
        aside = folder
    shutil.rmtree(aside, ignore_errors=True)
