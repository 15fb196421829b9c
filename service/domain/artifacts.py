"""Where artifacts lie."""

from __future__ import annotations

from pathlib import Path


def artifact_path(directory: Path, sha256: str, filename: str) -> Path:
    """Where the artifact lies. ``filename`` was checked when it came: it is a plain name."""
    return directory / sha256 / filename
