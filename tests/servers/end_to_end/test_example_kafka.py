"""The Kafka example, run as a command, and the Python blocks of its documentation page."""

from __future__ import annotations

import subprocess
import sys

import pytest

from epochal.testing.servers import ServerUnavailable
from epochal.testing.servers.kafka import COORDINATES, VERSION
from epochal.testing.servers.maven import artifacts
from tests.service.end_to_end.blocks import ROOT, blocks_of


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.server
def test_kafka_example_equals_pandas() -> None:
    try:
        artifacts(f"kafka-{VERSION}", COORDINATES)
    except ServerUnavailable as unavailable:
        pytest.skip(unavailable.message)
    command = [sys.executable, "-m", "examples.kafka.demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "was killed in its transaction" in done.stdout
    assert done.stdout.count(", equal to pandas") == 2


def test_python_blocks_of_the_kafka_page_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "not used: nothing connects")
    names: dict[str, object] = {}
    for block in blocks_of("docs/reference/sinks/kafka.md", "python"):
        exec(block.code, names)  # type: ignore[call-overload]
    kinds = {name: getattr(names[name], "kind", None) for name in ("clicks", "alerts", "secured")}
    assert kinds == {"clicks": "kafka", "alerts": "kafka", "secured": "kafka"}
