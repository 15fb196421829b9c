"""Folders for what was never synced to disk: it cannot be trusted after a crash of the system."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path
from uuid import uuid4


def boot_folder(parent: Path) -> Path:
    """The folder below ``parent`` for this boot of the machine. Those of others are thrown away when it is made."""
    folder = parent / _boot()
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        for other in parent.iterdir():
            if other.name != folder.name:
                throw_away(other)
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
