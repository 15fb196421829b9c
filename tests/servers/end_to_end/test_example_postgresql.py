"""The PostgreSQL example, run as a command, and the Python blocks of the documentation pages of databases."""

from __future__ import annotations

import subprocess
import sys

import pytest

from epochal.testing.servers import ServerUnavailable
from epochal.testing.servers.postgresql import postgresql
from tests.service.end_to_end.blocks import ROOT, blocks_of


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.server
def test_postgresql_example_equals_pandas() -> None:
    try:
        with postgresql():
            pass
    except ServerUnavailable as unavailable:
        pytest.skip(unavailable.message)
    command = [sys.executable, "-m", "examples.postgresql.demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "was killed before its commit" in done.stdout
    assert " routes in the table; 0 differ" in done.stdout


@pytest.mark.parametrize(
    ("page", "kinds"),
    [
        ("dbms", {"delays": "dbms", "orders": "dbms", "customers": "dbms"}),
        ("postgresql-two-phase", {"bookings": "postgresql-two-phase"}),
    ],
)
def test_python_blocks_of_the_database_pages_run(page: str, kinds: dict[str, str]) -> None:
    names: dict[str, object] = {}
    for block in blocks_of(f"docs/reference/sinks/{page}.md", "python"):
        exec(block.code, names)  # type: ignore[call-overload]
    assert {name: names[name].kind for name in kinds} == kinds  # type: ignore[attr-defined]
