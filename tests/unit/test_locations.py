"""Locations of files."""

from pathlib import Path

import pytest

from epochal.pipeline.definitions import absolute, is_absolute, local_path


@pytest.mark.parametrize(
    ("location", "path", "is_fixed"),
    [
        ("in/*.csv", "in/*.csv", False),
        ("/in/*.csv", "/in/*.csv", True),
        ("file:///in", "/in", True),
        ("file://in", "in", False),
        ("hdfs://host/in", None, True),
    ],
)
def test_relative_locations_become_absolute(location: str, path: str | None, is_fixed: bool) -> None:
    assert (local_path(location), is_absolute(location)) == (path, is_fixed)
    assert absolute(location) == (location if path is None else str(Path.cwd() / path))


def test_home_folders_are_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert is_absolute("~/in") and absolute("~/in") == "/home/ann/in"
