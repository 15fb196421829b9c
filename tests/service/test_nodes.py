"""Nodes of a catalog, as listed for users and for drivers."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest
from sqlalchemy import update

from epochal.cli.main import main
from epochal.client import Client
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import NodeRow
from epochal.service.catalog.nodes import NodeRepository
from epochal.service.commands.doctor import examine
from epochal.service.domain.checks import Verdict
from epochal.service.domain.nodes import FORGOTTEN_SECONDS, GONE_SECONDS, Node, driver_urls, out_of_reach
from epochal.service.domain.settings import Settings
from epochal.service.runtime.machine import Machine
from epochal.service.runtime.nodes import NodeHeartbeat, this_node
from tests.kit.catalogs import new_sqlite_catalog
from tests.kit.waiting import eventually
from tests.service.conftest import Plane, serving

HERE = Machine("here", "boot-1")


def node(id: str, internal_url: str | None, host: str = "remote", boot: str = "boot-9") -> Node:
    role: Literal["query", "control"] = "query" if internal_url is None else "control"
    return Node(id, role, host, boot, 1, f"http://{host}:8765", internal_url, "0.1.0")


def test_driver_urls_omit_loopback_addresses_of_other_machines() -> None:
    nodes = [
        node("1", "http://node-2:8766"),
        node("2", "http://127.0.0.1:8766"),
        node("3", "http://127.0.0.1:9766", "here", "boot-1"),
        node("4", "http://127.0.0.1:9767", "here", "an earlier boot"),
        node("5", None),
        node("6", "http://127.0.0.1:8766", "here", "boot-1"),
        node("7", "http://node-1:8766"),
    ]
    assert driver_urls(nodes, "http://127.0.0.1:8766", HERE) == (
        "http://127.0.0.1:8766",
        "http://127.0.0.1:9766",
        "http://node-1:8766",
        "http://node-2:8766",
    )
    assert driver_urls([], "http://node-1:8766", HERE) == ("http://node-1:8766",)


def test_loopback_control_plane_is_unreachable_from_other_machines() -> None:
    alone = node("1", "http://127.0.0.1:8766", "here", "boot-1")
    beside = node("2", "http://127.0.0.1:9766", "here", "boot-1")
    assert out_of_reach([alone, beside, node("3", None)]) == []
    remote = node("4", "http://node-2:8766")
    assert out_of_reach([alone, remote, beside]) == [alone, beside]
    assert out_of_reach([remote, node("5", "http://node-3:8766", "node-3")]) == []


def test_unreachable_control_plane_is_reported_at_start_and_by_doctor(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(settings):
        assert "reachable from its own machine only" not in caplog.text
        assert not any(finding.check == "drivers" for finding in examine(settings))
    database = Database(settings.database_url)
    with database.writing() as session:
        NodeRepository(session).record_heartbeat(node("1", "http://node-2:8766", "node-2"))
    with serving(settings):
        (finding,) = [finding for finding in examine(settings) if finding.check == "drivers"]
    assert finding.verdict is Verdict.WARNING and settings.internal_url in finding.said
    assert "EPOCHAL_INTERNAL_HOST" in finding.remedy
    assert finding.said in caplog.text
    database.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return new_sqlite_catalog(tmp_path / "catalog.sqlite")
    return str(request.getfixturevalue("postgresql_catalog_url"))


def test_node_is_listed_expires_and_is_removed(url: str) -> None:
    database = Database(url)
    first, second = NodeHeartbeat(database, node("1", "http://a"), 0.02), NodeHeartbeat(database, node("2", None), 60)

    def living() -> list[str]:
        with database.reading() as session:
            return [found.id for found in NodeRepository(session).living()]

    def silent_for(seconds: float) -> None:
        with database.writing() as session:
            at = session.get_one(NodeRow, "2").heartbeat_at - timedelta(seconds=seconds)
            session.execute(update(NodeRow).where(NodeRow.id == "2").values(heartbeat_at=at))

    first.open()
    second.open()
    assert living() == ["1", "2"]
    silent_for(GONE_SECONDS + 1)
    assert living() == ["1"]
    silent_for(FORGOTTEN_SECONDS)

    def rows() -> int:
        with database.reading() as session:
            return session.query(NodeRow).count()

    eventually(lambda: rows() == 1)  # removed by the next heartbeat of the first node
    second.close()
    first.close()
    assert rows() == 0
    database.close()


def test_control_planes_are_listed_and_sent_to_drivers(plane: Plane) -> None:
    (own,) = plane.get("/v1/nodes")["items"]
    assert (own["role"], own["state"], own["url"]) == ("control", "alive", plane.settings.url)
    plane.application()
    driver = plane.driver()
    assert driver.catalog.control_planes == (plane.settings.internal_url,)

    other = plane.settings.model_copy(update={"advertised_internal_url": "http://node-9:8766"})
    with plane.control.database.writing() as session:
        NodeRepository(session).record_heartbeat(this_node(other, "control"))
        NodeRepository(session).record_heartbeat(this_node(other, "query"))
    eventually(lambda: driver.running() == [] and len(driver.catalog.control_planes) == 2, 20)
    assert driver.catalog.control_planes == (plane.settings.internal_url, "http://node-9:8766")
    known = {found.internal_url for found in plane.control.ledger.plan(driver.execution).nodes}
    assert known == {plane.settings.internal_url, "http://node-9:8766", None}

    token = str(plane.client.headers["authorization"]).removeprefix("Bearer ")
    with Client(plane.settings.url, token) as client:
        assert [found.role for found in client.nodes.list()] == ["control", "control", "query"]


def test_nodes_command_lists_nodes(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", str(plane.client.headers["authorization"]).removeprefix("Bearer "))
    monkeypatch.setenv("COLUMNS", "160")
    main_returns("nodes")
    assert "alive" in (shown := capsys.readouterr().out) and plane.settings.url in shown


def main_returns(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code
