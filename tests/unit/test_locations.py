"""Locations of files."""

from pathlib import Path

import pytest

from epochal.pipeline.definitions import absolute, is_absolute, local_path


@pytest.mark.parametrize(
    ("location", "path", "stays"),
    [
        ("in/*.csv", "in/*.csv", False),
        ("/in/*.csv", "/in/*.csv", True),
        ("file:///in", "/in", True),
        ("file://in", "in", False),
        ("hdfs://host/in", None, True),
    ],
)
def test_what_a_location_means_elsewhere(location: str, path: str | None, stays: bool) -> None:
    assert (local_path(location), is_absolute(location)) == (path, stays)
    assert absolute(location) == (location if path is None else str(Path.cwd() / path))


def test_a_home_is_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert is_absolute("~/in") and absolute("~/in") == "/home/ann/in"
