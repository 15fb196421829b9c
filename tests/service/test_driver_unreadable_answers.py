"""A driver process that cannot read the answers of its control plane reports this and ends, without Spark."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from epochal.driver.orders import ExitCode
from tests.service.scripted_control_plane import POINT, Reply, Script, control_plane

pytestmark = pytest.mark.slow

DRIVER = """
import sys
from epochal.driver import heartbeat, main
heartbeat.TOLERATED_FAILURES = 2
sys.exit(main.main())
"""


@pytest.mark.parametrize(
    ("replies", "failure"),
    [
        ([Reply(200, {**POINT, "attempt": "second"})], "unreadable-answer"),
        ([Reply(200, POINT), Reply(200, {"directives": 7})], "heartbeats-failed"),
    ],
    ids=["begin", "heartbeat"],
)
def test_a_driver_ends_after_unreadable_answers(replies: list[Reply], failure: str, tmp_path: Path) -> None:
    artifact = b"import time\ntime.sleep(1000)  # a busy epoch loop\n"
    script = Script(replies, artifact)
    with control_plane(script) as url:
        orders = {
            "control_planes": [url],
            "token": "secret",
            "execution": "e1",
            "attempt": 2,
            "application": "flights",
            "artifact": {"sha256": hashlib.sha256(artifact).hexdigest(), "filename": "busy.py"},
            "store": str(tmp_path / "store"),
            "work_directory": str(tmp_path / "work"),
        }
        command = [sys.executable, "-c", DRIVER]
        driver = subprocess.run(command, input=json.dumps(orders), capture_output=True, text=True, timeout=120)

    assert driver.returncode == ExitCode.FAILED
    assert "This version cannot read the control plane" in driver.stdout
    method, path, body = script.asked[-1]
    assert (method, path, body["failure"]["type"]) == ("POST", "finish", failure)
    assert "version" in body["failure"]["message"]
