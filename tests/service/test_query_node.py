"""A query node as processes, beside a control plane that commits epochs: look-ups while its processes are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import text

from epochal.client import Client
from epochal.errors import CatalogUnavailable, MisdirectedRequest
from epochal.service.catalog.database import Database
from epochal.service.runtime.replicas.claim import claim
from epochal.testing.servers.control_plane import COMMAND
from tests.kit.waiting import eventually
from tests.service.backups import started
from tests.service.lookups import DELAYS, StateDriver, route
from tests.service.problems import check_problem

if TYPE_CHECKING:
    from epochal.service.domain.settings import Settings
    from tests.service.conftest import Driver, Plane

KEY = "/v1/applications/flights/state/delays/keys/JFK,LAX"


class Node:
    """A query node. It shares the data directory of the control plane and is notified locally, or has its own
    ``home``, as on another machine, and is notified through PostgreSQL."""

    def __init__(self, plane: Plane, home: Path | None = None) -> None:
        environment = {**os.environ, "EPOCHAL_HOME": str(home or plane.settings.data)}
        command = [COMMAND, "up", "--role", "query", "--workers", "2", "--port", "0", "--json"]
        if home is not None:
            environment["EPOCHAL_DATABASE_URL"] = plane.settings.database_url
            command += ["--store", plane.settings.store_url]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.started_as = json.loads("".join(iter(self.process.stdout.readline, "}\n")) + "}")
        self.headers = {"authorization": plane.client.headers["authorization"]}

    def get(self, path: str = KEY, **query: Any) -> httpx.Response:
        """Send the request over a new connection, so that any worker may answer. Repeat it if the worker dies."""
        while True:
            try:
                return httpx.get(self.started_as["url"] + path, params=query, headers=self.headers, timeout=30)
            except httpx.TransportError:
                time.sleep(0.01)

    def processes(self) -> dict[str, list[int]]:
        """Process ids by the module that they run."""
        found: dict[str, list[int]] = {"query_app": [], "query_applier": []}
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        for child in " ".join(path.read_text() for path in children).split():
            module = Path(f"/proc/{child}/cmdline").read_text().rpartition(".")[2].strip("\0")
            found[module].append(int(child))
        return found


@pytest.mark.alternating(2)
def test_query_node_and_control_plane_do_not_import_spark() -> None:
    program = (
        "import sys, epochal.service.query_applier; print(*sys.modules); "
        "import epochal.service.query_app; print(*sys.modules); import epochal.service.app; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    applier, query, control = map(set, map(str.split, done.stdout.splitlines()))
    assert not applier & {"fastapi", "starlette", "uvicorn", "prometheus_client", "httpx"}
    assert not query & {"pyspark", "pandas", "alembic", "epochal.pipeline", "epochal.engine.trial", "epochal.operators"}
    assert not {name for name in query if name.startswith("epochal.service.commands")}
    assert not control & {"pyspark", "pandas", "alembic", "epochal.operators"}


@pytest.fixture
def driver(plane: Plane) -> StateDriver:
    plane.application()
    return StateDriver(plane)


@pytest.fixture
def node(plane: Plane, driver: StateDriver) -> Iterator[Node]:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
    (plane.settings.replicas_directory / "another-start-of-this-machine.1").mkdir()
    node = Node(plane)
    try:
        yield node
    finally:
        node.process.kill()
        node.process.communicate()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
@pytest.mark.alternating(3)
def test_query_node_answers_while_its_processes_are_killed(plane: Plane, driver: StateDriver, node: Node) -> None:
    replicas = plane.settings.replicas_directory
    assert not (replicas / "another-start-of-this-machine.1").exists()
    eventually(lambda: node.get("/readyz").status_code == 200)

    # Every worker reads each epoch as soon as it is committed.
    for flights in range(2, 12):
        number = driver.epoch((DELAYS, [route("JFK", "LAX", flights, 1.0)]))
        for _ in range(4):
            answer = node.get(min_epoch=number).json()
            assert (answer["epoch"], answer["value"]["flights"]) == (number, flights)

    # A worker dies: the other one answers, and it is replaced.
    before = node.processes()
    assert [len(before["query_app"]), len(before["query_applier"])] == [2, 1]
    os.kill(before["query_app"][0], signal.SIGKILL)
    for _ in range(10):
        assert node.get().json()["epoch"] == number
    eventually(lambda: len(node.processes()["query_app"]) == 2 and before["query_app"][0] not in node.processes())

    # The applier dies: workers continue with the existing replicas, and follow again.
    os.kill(before["query_applier"][0], signal.SIGKILL)
    assert node.get().json()["epoch"] == number
    number = driver.epoch((DELAYS, [route("JFK", "LAX", 99, 1.0)]))
    eventually(lambda: node.get(min_epoch=number, wait_seconds=20).status_code == 200)
    assert node.get(min_epoch=number).json()["value"]["flights"] == 99
    assert node.processes()["query_applier"] != before["query_applier"]

    # All workers return the epoch from which an added column counts.
    partial = DELAYS.value[1].model_copy(update={"name": "added", "since": number + 1})
    upgraded = DELAYS.model_copy(update={"value": (*DELAYS.value, partial)})
    assert "since" not in node.get().json()
    driver.tables = (upgraded,)
    number = driver.epoch((upgraded, [route("JFK", "LAX", 99, 1.0)]))
    for _ in range(4):
        assert node.get(min_epoch=number, wait_seconds=20).json()["since"] == {"added": number}
    assert "since" not in node.get(epoch=number - 1).json()

    # Other endpoints of a query node, and endpoints that it refuses.
    token = plane.token("viewer")
    with Client(node.started_as["url"], token) as client:
        application = client.application("flights")
        assert application.state("delays").get("JFK", "LAX").value["flights"] == 99
        assert [row.value["flights"] for row in application.state("delays").scan().items] == [99]
        assert application.state("delays").get("JFK", "LAX", epoch=3).value["flights"] == 3
        assert application.get().head.epoch == number
        shown = subprocess.run(
            [COMMAND, "show", "flights", "--json"],
            env={**os.environ, "EPOCHAL_URL": node.started_as["url"], "EPOCHAL_TOKEN": token},
            stdout=subprocess.PIPE,
            check=True,
        )
        assert json.loads(shown.stdout)["head"]["epoch"] == number
        assert application.queries.list() == []
        with pytest.raises(MisdirectedRequest, match=f"query node.*control plane: {plane.settings.public_url}"):
            application.queries.add("SELECT count(*) AS n WINDOW '5 minutes'")
        with pytest.raises(MisdirectedRequest, match=f"query node.*control plane: {plane.settings.public_url}"):
            client.applications.stop("flights")
    problem = check_problem(node.get("/v1/tokens"), 421, "misdirected-request")
    assert plane.settings.public_url in problem["detail"]
    (listed,) = [item for item in node.get("/v1/nodes").json()["items"] if item["role"] == "query"]
    assert (listed["url"], listed["state"], listed["process"]) == (node.started_as["url"], "alive", node.process.pid)
    metrics = node.get("/metrics").text
    assert f'epochal_request_seconds_count{{method="GET",path="{_template()}",status="200"}}' in metrics
    assert "epochal_applications" not in metrics

    # All workers refuse a deleted token after a short time.
    node.headers = {"authorization": f"Bearer {token}"}
    assert node.get().status_code == 200
    (viewer_token,) = [item for item in plane.get("/v1/tokens")["items"] if item["name"] == "a-viewer"]
    assert plane.client.delete(f"/v1/tokens/{viewer_token['id']}").status_code == 204
    eventually(lambda: all(node.get().status_code == 401 for _ in range(6)))

    children = [child for group in node.processes().values() for child in group]
    node.process.send_signal(signal.SIGTERM)
    assert node.process.wait(20) == 0
    assert [item["role"] for item in plane.get("/v1/nodes")["items"]] == ["control"]
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    claimed = claim(replicas)
    assert claimed.path.name.endswith(".2") and (claimed.path / "index").is_dir()
    claimed.release()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.server
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_query_node_on_postgresql_survives_kills_and_a_rollback(
    settings: Settings, postgresql_catalog_url: str, tmp_path: Path
) -> None:
    with started(settings.model_copy(update={"database": postgresql_catalog_url})) as plane:
        plane.application()
        driver = StateDriver(plane)
        number = driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
        node = Node(plane, tmp_path / "query")
        try:
            eventually(lambda: node.get("/readyz").status_code == 200)

            def follows(flights: int) -> int:
                """Check that both workers answer from the epoch committed last."""
                number = driver.epoch((DELAYS, [route("JFK", "LAX", flights, 1.0)]))
                for _ in range(6):
                    answer = node.get(min_epoch=number, wait_seconds=20).json()
                    assert (answer["epoch"], answer["value"]["flights"]) == (number, flights)
                return number

            for flights in range(2, 8):
                number = follows(flights)
            for module, kill in (
                ("query_app", signal.SIGKILL),
                ("query_applier", signal.SIGKILL),
                ("query_applier", signal.SIGTERM),
            ):
                before = node.processes()
                os.kill(before[module][0], kill)
                for _ in range(6):
                    assert node.get().json()["epoch"] == number
                number = follows(number + 100)
                eventually(lambda: [len(found) for found in node.processes().values()] == [2, 1])
                assert node.processes()[module] != before[module]

            # Look-ups continue with the epoch of a rollback, and with later epochs.
            plane.post("/v1/applications/flights/stop")
            driver.driver.stop()
            target = {"epoch": 3}
            confirm = plane.post("/v1/applications/flights/rollback", 200, dry_run=True, **target)["confirm"]
            plane.post("/v1/applications/flights/rollback", 202, **target, confirm=confirm)
            eventually(lambda: node.get().json()["epoch"] == 3)
            assert node.get().json()["value"]["flights"] == 3
            too_late = node.get(min_epoch=number)
            assert too_late.status_code == 409, too_late.text
            plane.post("/v1/applications/flights/start")
            driver = StateDriver(plane)
            assert follows(1000) == driver.next_epoch - 1

            # Connections to the catalog break, as when the database fails over.
            with closing(Database(postgresql_catalog_url)) as database, database.reading() as session:
                session.execute(
                    text(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
                )
            eventually(lambda: heartbeat_succeeds(driver.driver))
            follows(2000)
            (listed,) = [item for item in node.get("/v1/nodes").json()["items"] if item["role"] == "query"]
            assert (listed["state"], listed["process"]) == ("alive", node.process.pid)
        finally:
            node.process.send_signal(signal.SIGTERM)
            try:
                node.process.wait(20)
            finally:
                node.process.kill()
                node.process.communicate()


def heartbeat_succeeds(driver: Driver) -> bool:
    """A heartbeat is not repeated after a lost connection to the catalog; the next one succeeds."""
    try:
        return driver.running() == []
    except CatalogUnavailable:
        return False


def _template() -> str:
    return "/v1/applications/{name}/state/{table}/keys/{key:path}"
