"""Servers that come as Debian packages: fetched once with ``apt-get download``, unpacked into the user's cache folder.

Nothing is installed, and no service is started: see :func:`packages`. Removing the folder is always safe.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from epochal.testing.servers.maven import cache
from epochal.testing.servers.process import ServerUnavailable

SECONDS = 300


def packages(name: str, names: Sequence[str]) -> Path:
    """The folder with what these packages hold (``usr/bin/..``), each by its name or as ``name=version``.

    Fetched at the first call on a machine, whole or not at all. Raises ``ServerUnavailable`` with the reason where
    there is no apt, no package list, or no network.
    """
    place = cache() / f"{name}-debian"
    if place.is_dir():
        return place
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise ServerUnavailable(f"{name} is fetched as a Debian package, and there is no apt-get here.")
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=place.parent))
    try:
        draft.chmod(0o755)  # apt may fetch as a user of its own
        if _run(["apt-get", "download", *names], draft) is not None and os.geteuid() == 0:
            _run(["apt-get", "update"], draft)  # there may be no list of packages yet
        if not any(draft.glob("*.deb")) and (reason := _run(["apt-get", "download", *names], draft)) is not None:
            raise ServerUnavailable(f"apt-get could not download {' '.join(names)}: {reason}")
        (draft / "unpacked").mkdir()
        for package in draft.glob("*.deb"):
            if (reason := _run(["dpkg", "-x", str(package), "unpacked"], draft)) is not None:
                raise ServerUnavailable(f"{package.name} could not be unpacked: {reason}")
        _publish(draft / "unpacked", place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place


def _run(command: Sequence[str], folder: Path) -> str | None:
    """``None`` when it succeeded, else why it did not."""
    try:
        ran = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if ran.returncode == 0 else (ran.stderr or ran.stdout).strip()[:500] or f"exit code {ran.returncode}"


def _publish(unpacked: Path, place: Path) -> None:
    """One rename. Whoever comes second finds the same there already."""
    try:
        unpacked.rename(place)
    except OSError:
        if not place.is_dir():
            raise
