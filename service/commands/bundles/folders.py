"""Where bundles are read below the data directory, and who this control plane is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from epochal.service.domain.identifiers import new_id
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


def control_plane_id(settings: Settings) -> str:
    """Made once for a data directory, and written into bundles."""
    file = settings.data.absolute() / "control-plane.id"
    with suppress(FileNotFoundError):
        return file.read_text().strip()
    draft = file.with_name(f".{file.name}.{new_id()}")
    draft.write_text(new_id())
    with suppress(FileExistsError):
        os.link(draft, file)
    draft.unlink()
    return file.read_text().strip()


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path
