"""One application through the command line and the client, with real drivers and Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from epochal.client import Client
from epochal.errors import Conflict, InvalidKey, NotFound

if TYPE_CHECKING:
    from epochal.testing.servers.control_plane import ControlPlane
    from tests.service.cli.conftest import CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

PATIENCE_SECONDS = 180
NAME = "story"


@pytest.fixture(scope="module")
def client(plane: ControlPlane) -> Iterator[Client]:
    with plane.client() as client:
        yield client


@pytest.fixture(scope="module")
def running(client: Client, tmp_path_factory: pytest.TempPathFactory, sensors_code: str) -> Iterator[Path]:
    """The running application ``story`` with committed epochs; yields its folder."""
    folder = tmp_path_factory.mktemp("story")
    file = folder / "sensors.py"
    file.write_text(sensors_code)
    artifact = client.artifacts.upload(file)
    client.applications.create(
        NAME,
        artifact.sha256,
        parameters={"output": str(folder / "out")},
        configuration={"epoch_interval_seconds": 0.2, "state_backend": "heap"},
    )
    client.applications.wait(NAME, timeout_seconds=PATIENCE_SECONDS)
    committed(client, NAME, 4)
    yield folder
    client.operations.wait(client.applications.stop(NAME), timeout_seconds=PATIENCE_SECONDS)


def committed(client: Client, name: str, count: int) -> None:
    """Wait for ``count`` committed epochs."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(client.application(name).epochs.list(limit=count, state="committed")) < count:
        assert time.monotonic() < deadline, client.applications.get(name)
        time.sleep(0.2)


def test_the_application_is_listed_and_shown(running: Path, epochal: CommandLine) -> None:
    (application,) = [item for item in epochal("ps", "--json").document["items"] if item["name"] == NAME]
    assert (application["state"], application["attempt"]) == ("running", 1)
    assert NAME in epochal("ps").output
    shown = epochal("show", NAME)
    assert "● running" in shown.output
    assert "readings bigint, highest bigint" in shown.output
    document = epochal("show", NAME, "--json").document
    assert document["current_execution"]["id"] == application["execution"]
    assert [table["table"] for table in document["state_tables"]] == ["highest"]


def test_epochs_are_listed_newest_first(running: Path, epochal: CommandLine) -> None:
    numbers = [item["epoch"] for item in epochal("epochs", NAME, "--limit", "3", "--json").document["items"]]
    assert len(numbers) == 3
    assert numbers == sorted(numbers, reverse=True)
    assert "committed" in epochal("epochs", NAME).output


def test_a_key_is_looked_up_at_the_head_and_at_an_earlier_epoch(
    running: Path, epochal: CommandLine, client: Client
) -> None:
    state = client.application(NAME).state("highest")
    newest = state.get("s1")
    assert newest.value is not None
    first = client.application(NAME).epochs.list(limit=None, state="committed")[-1].epoch
    later = state.get("s1", min_epoch=newest.epoch + 1, wait_seconds=30)
    assert later.epoch > newest.epoch
    earlier = epochal("get", NAME, "highest", "s1", "--epoch", str(newest.epoch), "--json").document
    assert earlier["value"] == newest.value
    assert (earlier["epoch"], earlier["isolation"]) == (newest.epoch, "read_committed")
    assert first < newest.epoch
    assert "readings" in epochal("get", NAME, "highest", "s1").output
    assert epochal("get", NAME, "highest", "nothing").code == 3


def test_a_lookup_of_several_keys_keeps_their_order(running: Path, client: Client) -> None:
    answer = client.application(NAME).state("highest").lookup([{"sensor": "s2"}, {"sensor": "no"}, {"sensor": "s0"}])
    assert [value is None for value in answer.values] == [False, True, False]
    with pytest.raises(InvalidKey):
        client.application(NAME).state("highest").lookup([{"colour": "s2"}])


def test_events_and_logs_can_be_followed(running: Path, client: Client, epochal: CommandLine) -> None:
    events = list(islice(client.application(NAME).events(), 3))
    assert {event.data["application"] for event in events} == {NAME}
    assert all(event.id is not None for event in events)
    assert "E1 open" in "\n".join(islice(client.application(NAME).logs(follow=True), 100))
    assert len(epochal("logs", NAME, "--tail", "5").output.splitlines()) == 5
    assert len(epochal("logs", NAME, "--tail", "5", "--json").document["lines"]) == 5


def test_a_snapshot_contains_its_manifest(running: Path, client: Client) -> None:
    application = client.application(NAME)
    epoch = application.snapshots.list(limit=1)[0].epoch
    snapshot = application.snapshots.get(epoch)
    assert snapshot.reference.epoch == snapshot.manifest["epoch"] == epoch
    assert "reference" not in snapshot.manifest


def test_a_fork_from_a_savepoint_has_its_lineage_and_can_be_deleted(
    running: Path, client: Client, epochal: CommandLine
) -> None:
    made = epochal("savepoint", "create", NAME, "kept", "--message", "before the fork", "--json")
    assert made.code == 0, made.stderr
    epoch = made.document["result"]["epoch"]
    assert "before the fork" in epochal("savepoint", "list", NAME).output
    assert epochal("savepoint", "create", NAME, "kept").code == 4

    with pytest.raises((Conflict, NotFound)):
        client.applications.fork(NAME, "other", savepoint="missing")
    refused = epochal("fork", NAME, "other", "--savepoint", "kept")
    assert refused.code != 0
    assert "out" in refused.stderr
    forked = epochal("fork", NAME, "other", "--savepoint", "kept", "-p", "modulo=10", "--shadow", "--wait", "--json")
    assert forked.code == 0, forked.stderr
    assert forked.document["parent"]["epoch"] == epoch
    assert forked.document["parameters"]["modulo"] == 10
    committed(client, "other", epoch + 2)

    drawn = epochal("lineage", NAME)
    assert "savepoint kept" in drawn.output
    assert "modulo unset → 10" in drawn.output
    assert "├─╯" in drawn.output
    tree = epochal("lineage", NAME, "--json").document
    assert {edge["kind"] for edge in tree["edges"]} == {"epoch", "fork"}
    assert len({(node["branch"], node["epoch"]) for node in tree["nodes"]}) == len(tree["nodes"])

    assert epochal("delete", "other", "--yes").code == 4
    stopped = epochal("stop", "other", "--savepoint", "last")
    assert (stopped.code, stopped.stderr) == (0, "")
    assert "savepoint last" in stopped.output
    assert epochal("get", "other", "highest", "s1").code == 0
    assert epochal("savepoint", "delete", "other", "last").code == 0
    assert epochal("delete", "other", "--yes").code == 0
    assert epochal("show", "other").code == 3


def test_a_taken_name_is_refused(running: Path, epochal: CommandLine, tmp_path: Path) -> None:
    file = running / "sensors.py"
    answer = epochal("submit", file, "--name", NAME, "-p", f"output={tmp_path}/other", "--no-start")
    assert answer.code == 4
    assert "name" in answer.stderr


def test_a_wrong_pipeline_is_refused_with_its_operator(epochal: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(
        "from epochal import Pipeline\n"
        "from epochal.connectors import console, generator\n"
        "pipeline = Pipeline('wrong')\n"
        "rows = pipeline.read('rows', generator.source({'k': 'id % 3'}, bound=10))\n"
        "rows.key_by('missing').aggregate('counts', n='count(*)').write('out', console.sink())\n"
    )
    answer = epochal("submit", file, "--name", "wrong")
    assert answer.code == 1
    assert "'counts'" in answer.stderr
    assert "missing" in answer.stderr
    assert epochal("show", "wrong").code == 3


def test_submit_warns_of_a_table_with_a_short_retention(epochal: CommandLine, tmp_path: Path) -> None:
    table, file = tmp_path / "orders", tmp_path / "orders.py"
    DeltaTable.create(
        str(table),
        Schema.from_arrow(pa.schema([pa.field("n", pa.int64())])),
        configuration={"delta.deletedFileRetentionDuration": "interval 1 hour"},
    )
    file.write_text(
        "from epochal import Pipeline\n"
        "from epochal.connectors import delta, generator\n"
        "pipeline = Pipeline('orders')\n"
        f"pipeline.read('rows', generator.source({{'n': 'id'}})).write('out', delta.sink({str(table)!r}))\n"
    )
    answer = epochal("submit", file, "--name", "orders", "--no-start")
    assert answer.code == 0
    assert "warning: " in answer.stderr and "'interval 1 hour'" in answer.stderr
    refused = epochal("sink", "optimize", "orders", "out")
    assert refused.code == 4 and "`epochal start orders`" in refused.stderr
    assert epochal("delete", "orders", "--yes").code == 0
