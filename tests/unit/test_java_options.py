"""JVM options of a driver, combined with those of the author and the environment."""

from __future__ import annotations

import os
import subprocess

import pytest

from epochal.engine.class_archive import JAVA_OPTIONS
from epochal.engine.session import MEMORY, java_options

SERIAL = "-XX:+UseSerialGC"


@pytest.fixture(autouse=True)
def _few_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


def test_the_authors_options_come_last_and_take_precedence() -> None:
    authors = "-XX:Tier4InvocationThreshold=7 -Xss4m"
    options = java_options({JAVA_OPTIONS: authors})
    assert options.endswith(authors)
    assert options.index("-XX:Tier4InvocationThreshold=50000") < options.index("-XX:Tier4InvocationThreshold=7")


def test_serial_gc_is_used_with_few_cores_and_the_default_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SERIAL in java_options({})
    assert SERIAL not in java_options({MEMORY: "16g"})
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert SERIAL not in java_options({})


def test_a_configured_collector_replaces_serial_gc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM does not start with two collectors."""
    assert SERIAL not in java_options({JAVA_OPTIONS: "-XX:+UseZGC"})
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseParallelGC")
    assert SERIAL not in java_options({})


def test_a_jvm_starts_with_the_options() -> None:
    done = subprocess.run(["java", *java_options({}).split(), "-version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
