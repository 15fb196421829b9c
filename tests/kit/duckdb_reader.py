"""DuckDB with its extensions for Delta and Iceberg, as a reader that shares no code with the sinks.

The extensions are packages for one version of DuckDB, so they have an environment of their own, which is made once per
machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from typing import Any

from filelock import FileLock

from epochal.testing.servers.maven import cache
from epochal.testing.servers.process import ServerUnavailable

VERSION = "1.5.5"
PACKAGES = [f"duckdb=={VERSION}", *(f"duckdb-extension-{name}=={VERSION}" for name in ("delta", "avro", "iceberg"))]
_PROGRAM = """
import importlib.util, json, sys
import duckdb

connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for name in ("avro", "delta", "iceberg"):
    folder = importlib.util.find_spec(f"duckdb_extension_{name}").submodule_search_locations[0]
    connection.execute(f"LOAD '{folder}/extensions/v{sys.argv[1]}/{name}.duckdb_extension'")
answers = []
for query in json.load(sys.stdin):
    found = connection.execute(query)
    columns = [column[0] for column in found.description]
    answers.append([dict(zip(columns, map(str, row))) for row in found.fetchall()])
json.dump(answers, sys.stdout)
"""


def answers(queries: list[str]) -> list[list[dict[str, Any]]]:
    """The rows of each query, with all values as texts. Raises ``ServerUnavailable`` if DuckDB cannot be installed."""
    done = subprocess.run(
        [_python(), "-c", _PROGRAM, VERSION],
        input=json.dumps(queries),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return found


def _python() -> str:
    folder = cache() / f"duckdb-{VERSION}-{sys.version_info.major}.{sys.version_info.minor}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    python, done = folder / "bin" / "python", folder / "done"
    with FileLock(f"{folder}.lock"):
        if not done.exists():
            venv.create(folder, with_pip=True, clear=True)
            installed = subprocess.run(
                [python, "-m", "pip", "install", "--quiet", *PACKAGES], capture_output=True, text=True, check=False
            )
            if installed.returncode != 0:
                raise ServerUnavailable(f"DuckDB {VERSION} cannot be installed: {installed.stderr.strip()[-300:]}")
            done.touch()
    return str(python)
