"""Uploaded code is looked at before it is kept."""

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
def test_an_archive_of_too_many_files_is_refused_before_they_are_listed(count: int, name: str) -> None:
    content = archive(count, name)
    tracemalloc.start()
    with pytest.raises(ArtifactError, match=r"5000 (files )?are allowed"):
        check_artifact("flights.zip", content, 1 << 30)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8 << 20


@pytest.mark.parametrize("content", [b"x", b"PK\x05\x06", b"PK\x05\x06" + b"\xff" * 18, archive(3)[:-30]])
def test_what_is_no_archive_is_refused(content: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"not a zip file|are allowed"):
        check_artifact("flights.zip", content, 1 << 30)


def test_an_archive_is_taken(tmp_path: Path) -> None:
    check_artifact("flights.zip", archive(100), 1 << 30)


@pytest.mark.parametrize(("folder", "file"), [(0o700, 0o600), (0o750, 0o640)])
def test_kept_code_is_as_readable_as_the_folder_of_all(tmp_path: Path, folder: int, file: int) -> None:
    tmp_path.chmod(folder)
    keep(tmp_path / "abc" / "flights.py", b"x = 1")
    with kept_for_a_while(tmp_path, "flights.py", b"x = 1") as path:
        for kept in (path, tmp_path / "abc" / "flights.py"):
            assert kept.read_bytes() == b"x = 1"
            assert stat.S_IMODE(kept.stat().st_mode) == file
            assert stat.S_IMODE(kept.parent.stat().st_mode) == folder
    assert not path.parent.exists()
