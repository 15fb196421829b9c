"""Requests to a store in S3, counted at a proxy: one for a small epoch, none without input."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from epochal.client import Client
from epochal.testing.servers.control_plane import ControlPlane
from epochal.testing.servers.s3_proxy import S3Proxy
from epochal.testing.servers.s3_requests import Request
from tests.servers.end_to_end.test_s3_installation import CODE, NAME, TIMEOUT_SECONDS, Input, wait_for_totals

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(400)]

EPOCHS = 12
IDLE_SECONDS = 8


def head(client: Client) -> int:
    return max(epoch.epoch for epoch in client.application(NAME).epochs.list(state="committed"))


def test_small_epochs_are_one_request_each_and_none_is_made_without_input(
    s3_installation: ControlPlane, s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    events = Input(tmp_path / "in")
    (tmp_path / "totals.py").write_text(CODE)
    configuration = {"epoch_interval_seconds": 0.05, "parallelism": 2, "compact_after_epochs": 1_000}
    with s3_installation.client() as client:
        events.feed(3)
        artifact = client.artifacts.upload(tmp_path / "totals.py")
        parameters = {"folder": str(tmp_path / "in"), "output": str(tmp_path / "out")}
        client.applications.create(NAME, artifact.sha256, parameters=parameters, configuration=configuration)
        client.applications.wait(NAME, "committed", timeout_seconds=TIMEOUT_SECONDS)
        wait_for_totals(client, events.totals)  # the replica is built

        first, mark = head(client), s3_proxy.mark()
        for _ in range(EPOCHS):
            events.feed(1)
            wait_for_totals(client, events.totals)
        epochs, requests = head(client) - first, s3_proxy.requests(mark)
        shown = [f"{request.kind} {request.path.rpartition('/installation/')[2]}" for request in requests]
        counts = Counter(request.kind for request in requests)
        assert counts["PUT"] == epochs >= EPOCHS and all(map(is_pack, requests)), shown
        assert set(counts) <= {"PUT", "GET"}, shown
        assert counts["GET"] <= 2 * epochs, shown

        time.sleep(1)
        mark = s3_proxy.mark()
        time.sleep(IDLE_SECONDS)
        assert s3_proxy.requests(mark) == []


def is_pack(request: Request) -> bool:
    return request.path.endswith(".pack")
