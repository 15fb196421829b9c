"""Files of a release that no later version changes."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from tests.kit.change_record import ROOT
from tests.service.availability.released import RELEASES, last_release, programs, unpack, wheel_of
from tests.spark.formats.test_formats import FIXTURE

RELEASED = sorted(folder.name for folder in RELEASES.iterdir())
STORED_BY_0_1_0 = "24f9cde097d5fae17d214e019d2bee3c3e064aed8795a5c4418f8a86fc3d61a3"


@pytest.mark.claim("CONTRIBUTING.md: A migration that was released does not change")
@pytest.mark.parametrize("version", RELEASED)
def test_released_migrations_are_unchanged(version: str) -> None:
    with zipfile.ZipFile(wheel_of(RELEASES / version)) as wheel:
        names = [name for name in wheel.namelist() if name.startswith("epochal/migrations/versions/0")]
        assert names
        for name in names:
            assert (ROOT / name).read_bytes() == wheel.read(name), f"{name} is part of {version}: add a migration"


def test_the_stored_fixture_of_the_first_release_is_unchanged() -> None:
    digest = hashlib.sha256()
    for path in sorted(FIXTURE.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(FIXTURE)}:{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    assert digest.hexdigest() == STORED_BY_0_1_0, "add a fixture of the new format, and keep this one"


def test_a_release_has_the_modules_of_its_processes(tmp_path: Path) -> None:
    unpack(last_release(), tmp_path)
    assert (tmp_path / "epochal" / "service" / "app.py").is_file()
    assert (tmp_path / "tests" / "service" / "availability" / "plane.py").is_file()
    assert all(file.startswith("tests/") for file in programs())
    assert "tests/kit/catalogs.py" in programs()
