"""The commands of docs/tutorials/one-wrong-number.md, run by its demo."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.service.end_to_end.blocks import ROOT


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_wrong_number_is_found_traced_tried_and_corrected() -> None:
    command = [sys.executable, "-m", "examples.wrong_number.demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=850)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "total 300.78 → 20562.78" in done.stdout
    assert "revenue: 1 rows differ" in done.stdout
    assert done.stdout.count("as it should be") == 3
