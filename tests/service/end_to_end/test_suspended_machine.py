"""A suspended machine: Spark in one process continues afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DRIVER = """
import os, sys
from epochal.contracts.configuration import Configuration
from epochal.engine.session import create_session
spark = {"spark.executor.heartbeatInterval": "1s", "spark.network.timeout": "4s", "spark.network.timeoutInterval": "1s"}
session = create_session("sleeper", Configuration(master="local[1]", spark=spark))
print("ready", session.sparkContext._gateway.proc.pid, flush=True)
sys.stdin.readline()
print("counted", session.range(10).count(), flush=True)
session.stop()
"""


@pytest.mark.long
def test_spark_in_one_process_survives_a_suspended_machine(tmp_path: Path) -> None:
    with (tmp_path / "errors").open("wb") as errors:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert driver.stdin is not None and driver.stdout is not None
    java = int(next(line for line in driver.stdout if line.startswith("ready")).split()[1])
    os.kill(java, signal.SIGSTOP)
    time.sleep(8)  # twice the time that Spark waits for an executor
    os.kill(java, signal.SIGCONT)
    time.sleep(5)  # several heartbeats
    answer, _ = driver.communicate("\n", timeout=120)
    assert answer.strip() == "counted 10"
    assert driver.returncode == 0
    errors_text = (tmp_path / "errors").read_text()
    assert "CoarseGrainedScheduler" not in errors_text and "heartbeat" not in errors_text, errors_text
