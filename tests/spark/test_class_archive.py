"""Spark's classes are mapped from an archive if one exists that matches, and only then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from epochal.contracts.configuration import Configuration
from epochal.engine import class_archive
from epochal.engine.class_archive import archive_options, find_archive
from epochal.engine.session import JAVA_OPTIONS, session_settings


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(class_archive.FOLDER, str(tmp_path))
    return tmp_path


def leave_archive(folder: Path, size: int, declared_size: int) -> Path:
    stem = class_archive._stem()
    assert stem is not None
    path = folder / f"{stem}-{declared_size}.jsa"
    path.write_bytes(b"x" * size)
    return path


def test_jvm_has_no_archive_option_without_an_archive(archives: Path) -> None:
    assert find_archive() is None
    assert archive_options() == ""
    assert "Archive" not in session_settings(Configuration())[JAVA_OPTIONS]


def test_archive_is_found_and_the_options_of_the_author_are_kept(archives: Path) -> None:
    path = leave_archive(archives, 7, 7)
    configuration = Configuration(spark={JAVA_OPTIONS: "-Xss4m"})
    options = session_settings(configuration)[JAVA_OPTIONS]
    assert f"-XX:SharedArchiveFile={path}" in options
    assert options.endswith("-Xss4m")


def test_archive_of_the_author_takes_precedence(archives: Path) -> None:
    leave_archive(archives, 7, 7)
    configuration = Configuration(spark={JAVA_OPTIONS: "-XX:SharedArchiveFile=/mine"})
    options = session_settings(configuration)[JAVA_OPTIONS].split()
    assert [option for option in options if "Archive" in option] == ["-XX:SharedArchiveFile=/mine"]


def test_a_truncated_archive_is_not_used(archives: Path) -> None:
    leave_archive(archives, 6, 7)
    assert find_archive() is None


def test_an_archive_for_another_java_is_not_used(archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_archive(archives, 7, 7)
    other = archives / "java" / "bin"
    other.mkdir(parents=True)
    (other / "java").write_text("")
    (other / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(other.parent))
    assert find_archive() is None


def test_jvm_of_spark_maps_the_archive(spark: SparkSession) -> None:
    archive = find_archive()
    if archive is None:
        pytest.skip("no archive was made for this environment: python -m epochal.engine.class_archive")
    assert spark.range(3).count() == 3
    jvms = jvms_of(os.getpid())
    assert jvms and all(str(archive) in Path(f"/proc/{pid}/maps").read_text() for pid in jvms)


def jvms_of(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
            command = (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == parent and b"SparkSubmit" in command:
            found.append(int(status.parent.name))
    return found
