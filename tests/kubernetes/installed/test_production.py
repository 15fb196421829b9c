"""The result of the commands of the page "In production"."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.client import Client
from tests.kubernetes.installed.applications import Application
from tests.kubernetes.installed.commands import PAGE, Reader
from tests.kubernetes.installed.installation import Installation
from tests.service.end_to_end.blocks import blocks_of

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1800)]


def test_release_has_three_control_planes_and_two_query_nodes(installed: Installation) -> None:
    """One control plane leads; the nodes register themselves."""
    assert (len(installed.component("control")), len(installed.component("query"))) == (3, 2)
    with installed.client() as client:
        nodes = [node for node in client.nodes.list() if node.state == "alive"]
    assert sorted(node.role for node in nodes) == ["control"] * 3 + ["query"] * 2
    assert installed.leader() is not None


def test_application_is_applied_and_answers_look_ups(installed: Installation, tmp_path: Path) -> None:
    """Its driver and executor are pods; a query node and a control plane return the same value."""
    reader = Reader(installed, tmp_path)
    (commands,) = [block for block in blocks_of(PAGE, "sh") if "epochal apply" in block.text]
    reader.follow(commands)
    assert "created, started" in reader.output["epochal apply -f orders.yaml"]
    assert "running" in reader.output["epochal show orders"] or "starting" in reader.output["epochal show orders"]
    assert "total" in reader.output["epochal get orders spent 42"]
    with installed.client() as client, Client(installed.lookups.url, installed.token) as lookups:
        application = Application(installed, client, "orders")
        assert len(application.executors) == 1
        found = client.application("orders").state("spent").get(42)
        same = lookups.application("orders").state("spent").get(42, epoch=found.epoch)
        assert same.value == found.value
        application.end()
