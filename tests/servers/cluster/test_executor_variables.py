"""Executors of a standalone cluster receive the variables of an object store, and no log or command shows a secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from epochal.testing.servers.spark_standalone import StandaloneCluster

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(300)]

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "pl4nted-access",
    "AWS_SESSION_TOKEN": "pl4nted-session",
    "AWS_SSE_CUSTOMER_KEY_BASE64": "pl4nted-encryption",
    "HTTPS_PROXY": "http://ann:pl4nted-proxy@proxy:3128",
}
OPEN = {"AWS_ACCESS_KEY_ID": "AKIA-of-a-test", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
DRIVER = """
import json, os, sys
from pathlib import Path
from pyspark.sql import SparkSession
from epochal.contracts.configuration import Configuration
from epochal.engine.session import create_session

options = json.loads(sys.argv[2])
if sys.argv[3] == "running":  # as in a former spare
    create_session("spare", Configuration(master=sys.argv[1], spark=options))
spark = create_session("driver", Configuration(master=sys.argv[1], spark=options), "s3://bucket/prefix")

def environment(batches):
    import pyarrow
    for _ in batches:
        pass
    yield pyarrow.RecordBatch.from_pydict({"seen": [json.dumps(dict(os.environ))]})

rows = spark.range(0, 8, 1, 4).mapInArrow(environment, "seen string").collect()
commands = []
for entry in Path("/proc").iterdir():
    try:
        commands.append((entry / "cmdline").read_bytes().decode(errors="replace"))
    except OSError:
        pass
print(json.dumps({"seen": [json.loads(row.seen) for row in rows], "commands": commands}))
spark.stop()
"""


@pytest.mark.parametrize("session", ["new", "running"])
def test_executors_receive_them_and_nothing_shows_a_secret(
    cluster: StandaloneCluster, tmp_path: Path, session: str
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    options = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.executor.memory": "512m",
        "spark.log.level": "INFO",
        "spark.logConf": "true",
        "spark.executorEnv.AWS_PROFILE": "of-the-author",
        "spark.executorEnv.AZURE_STORAGE_ACCOUNT_KEY": "pl4nted-author",
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, cluster.master_url, json.dumps(options), session],
        env=environment | SECRETS | OPEN | {"AWS_PROFILE": "of-the-driver", "AWS_ROLE_ARN": "of-this-machine"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.strip().splitlines()[-1])

    assert len(answer["seen"]) == 4
    for seen in answer["seen"]:
        assert {name: seen.get(name) for name in SECRETS | OPEN} == SECRETS | OPEN
        assert (seen["AWS_PROFILE"], seen.get("AWS_ROLE_ARN")) == ("of-the-author", None)
    # The author's own variables are arguments of the JVM, and therefore no place for a secret.
    own = {*SECRETS.values()} | {"pl4nted-proxy"}
    assert [command for command in answer["commands"] if any(secret in command for secret in own)] == []
    (log,) = (path for path in events.rglob("*") if path.is_file() and "spark.executorEnv" in path.read_text())
    assert "AKIA-of-a-test" in log.read_text() or session == "running"
    files = [path for path in [log, *cluster.folder.rglob("*")] if path.is_file()]
    shown = {str(path): path.read_text(errors="replace") for path in files}
    shown |= {"output of the driver": done.stderr}
    lines = [(name, line) for name, text in shown.items() for line in text.splitlines() if "pl4nted" in line]
    assert [(name, line[:80], line.partition("pl4nted")[0][-80:]) for name, line in lines] == []
