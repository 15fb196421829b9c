"""The separate process that answers drivers: replaced when it dies or hangs, and ended with its control plane."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from epochal.cli.listening import listen
from epochal.service.app import create_app
from epochal.service.domain.settings import Pools, Settings
from epochal.service.runtime.internal_server import InternalServer
from tests.kit.waiting import eventually
from tests.service.conftest import Plane, StandInBuilder, StandInSupervisor, free_port, http_client, serving_app

LOOPBACK = "127.0.0.1"


@contextmanager
def two_processes(data: Path) -> Iterator[tuple[Plane, InternalServer]]:
    """A control plane in this process with its internal server, as ``epochal up`` starts them."""
    with listen(LOOPBACK, 0) as listener:
        settings = Settings(data=data, port=free_port(), internal_port=listener.getsockname()[1])
        with closing(InternalServer(settings, listener, hung_seconds=1.5)) as server:
            server.begin()
            supervisor = StandInSupervisor()
            app = create_app(settings, lambda *_: StandInBuilder(), lambda *_: supervisor, beside=[server])
            with serving_app(app, settings) as (control, token), http_client(settings, token) as client:
                yield Plane(control, client, settings, supervisor, []), server


@pytest.mark.alternating(2)
def test_drivers_are_answered_by_a_separate_process_and_its_successor(tmp_path: Path) -> None:
    with two_processes(tmp_path / "data") as (plane, server):
        plane.application()
        driver = plane.driver()
        assert driver.running() == []
        driver.epochs(2)

        public = plane.client.post(f"/internal/v1/executions/{driver.execution}/attempts/{driver.attempt}/begin")
        assert public.status_code == 404
        with httpx.Client(base_url=plane.settings.internal_url, trust_env=False) as anonymous:
            assert anonymous.get("/healthz").status_code == 204
            assert anonymous.get("/v1/applications").status_code == 404
            path = f"/internal/v1/executions/{driver.execution}/attempts/{driver.attempt}/heartbeat"
            refused = anonymous.post(path, json={"phase": "running"})
            assert refused.status_code == 401 and refused.json()["type"] == "urn:epochal:problem:unauthenticated"

        first = server.process
        assert first is not None
        os.kill(first, signal.SIGKILL)
        driver.epochs(2)  # retried until the successor answers
        assert server.process != first
        epochs = plane.get("/v1/applications/flights/epochs")["items"]
        assert [(item["epoch"], item["state"]) for item in epochs] == [(n, "committed") for n in (4, 3, 2, 1)]

        second = server.process
        assert second is not None
        eventually(server.answers)
        os.kill(second, signal.SIGSTOP)
        driver.epochs(1)
        assert server.process != second
        eventually(server.answers)

        third = server.process
    assert not server.answers()
    assert third is not None
    with pytest.raises(ProcessLookupError):
        os.kill(third, 0)


def test_the_internal_process_loads_no_heavy_modules() -> None:
    program = "import sys, epochal.service.internal_app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"pyspark", "pyarrow", "numpy", "fsspec", "httpx", "prometheus_client", "rich", "alembic"}
    assert not {name for name in loaded if name.startswith(("epochal.service.commands", "epochal.service.queries"))}


def test_the_sizes_of_pools_add_up_to_the_total() -> None:
    for total in (12, 13, 64, 100):
        pools = Pools.of(total)
        assert pools.requests + pools.supervision + pools.leadership + pools.drivers == total
        assert min(pools.requests, pools.supervision, pools.drivers) >= 3


def test_advertised_urls_override_those_of_the_listeners() -> None:
    everywhere = Settings(host="0.0.0.0", internal_host="::", internal_port=8766)
    assert everywhere.public_url == f"http://{socket.gethostname()}:8765"
    assert everywhere.internal_url == f"http://{socket.gethostname()}:8766"
    assert Settings(internal_host="::1", internal_port=1).internal_url == "http://[::1]:1"
    assert Settings().internal_url == Settings().url
    advertised = Settings(advertised_url="https://epochal.example", advertised_internal_url="http://node-1:8766")
    assert (advertised.public_url, advertised.internal_url) == ("https://epochal.example", "http://node-1:8766")
