"""Generated requests: no answer is a server error or deviates from the OpenAPI document."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.service.conftest import Plane

CHECKS = "not_a_server_error,content_type_conformance,status_code_conformance,response_schema_conformance"
# Streams do not end, drivers use other tokens, and deleting the token in use would end the test.
EXCLUDED = "/events|/logs|/internal|/tokens/"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed")
@pytest.mark.alternating(2)
def test_generated_requests_receive_documented_answers(plane: Plane, tmp_path: Path, run_seed: int) -> None:
    console = plane.artifact({"out": "console:"})
    for name in "abcdef":
        plane.application(name, artifact=console, start=False)
    token = plane.admin_token
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{plane.settings.url}/openapi.json"),
        *("--header", f"Authorization: Bearer {token}"),
        *("--checks", CHECKS, "--exclude-path-regex", EXCLUDED),
        *("--phases", "fuzzing", "--max-examples", str(settings.default.max_examples // 12), "--seed", str(run_seed)),
    ]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=240)

    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
