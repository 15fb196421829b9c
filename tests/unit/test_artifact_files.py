"""Checks and storage of uploaded code."""

from __future__ import annotations

import io
import stat
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from epochal.errors import ArtifactError
from epochal.service.runtime.artifact_files import check_artifact, keep, kept_for_a_while


def archive(count: int, name: str = "m{}.py") -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as opened:
        for number in range(count):
            opened.writestr(name.format(number), "")
    return target.getvalue()


@pytest.mark.parametrize(("count", "name"), [(5_001, "{}"), (60_000, "m{}.py"), (200, "{}" + "x" * 60_000)])
def test_archives_with_too_many_files_are_refused_without_listing_them(count: int, name: str) -> None:
    content = archive(count, name)
    tracemalloc.start()
    with pytest.raises(ArtifactError, match=r"5000 (files )?are allowed"):
        check_artifact("flights.zip", content, 1 << 30)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("content", [b"x", b"PK\x05\x06", b"PK\x05\x06" + b"\xff" * 18, archive(3)[:-30]])
def test_invalid_archives_are_refused(content: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"not a zip file|are allowed"):
        check_artifact("flights.zip", content, 1 << 30)


def test_valid_archives_are_accepted(tmp_path: Path) -> None:
    check_artifact("flights.zip", archive(100), 1 << 30)


@pytest.mark.parametrize(("folder", "file"), [(0o700, 0o600), (0o750, 0o640)])
def test_stored_code_has_the_permissions_of_its_folder(tmp_path: Path, folder: int, file: int) -> None:
    tmp_path.chmod(folder)
    keep(tmp_path / "abc" / "flights.py", b"x = 1")
    with kept_for_a_while(tmp_path, "flights.py", b"x = 1") as path:
        for stored in (path, tmp_path / "abc" / "flights.py"):
            assert stored.read_bytes() == b"x = 1"
            assert stat.S_IMODE(stored.stat().st_mode) == file
            assert stat.S_IMODE(stored.parent.stat().st_mode) == folder
    assert not path.parent.exists()
