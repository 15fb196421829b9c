"""Where bundles are read, below the data directory."""

from __future__ import annotations

from pathlib import Path

from epochal.service.domain.settings import Settings

ENDING = ".epochal"


def uploads(settings: Settings) -> Path:
    return _folder(settings.data.absolute() / "imports")


def upload_file(settings: Settings, upload: str) -> Path:
    """An upload that was put together."""
    return uploads(settings) / f"{upload}{ENDING}"


def unpacked(bundle: Path) -> Path:
    """Where an upload's members lie while they are brought in."""
    return bundle.with_suffix(".unpacked")


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path
