"""Spare drivers in pods: use by an application, with and without executors, and with kills at each step; removal."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from epochal.client import Client
from epochal.faults import Fault
from tests.kit.kubernetes import KubernetesCluster
from tests.kit.kubernetes.kubelet import Kubelet
from tests.kit.waiting import eventually
from tests.kubernetes.installations import Installation, installed

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def installation(
    cluster: KubernetesCluster, kubelet: Kubelet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("spares")
    with installed(cluster, kubelet, folder, spare_drivers=1, spare_builders=0) as installation:
        yield installation


@pytest.fixture
def client(installation: Installation) -> Iterator[Client]:
    with installation.plane.client() as client:
        yield client


def spares(installation: Installation) -> dict[str, Any]:
    """Return the free spares, by pod name."""
    pods = installation.project.pods()
    return {name: pod for name, pod in pods.items() if pod["metadata"]["labels"].get("epochal.dev/spare") == "free"}


def ready_spare(installation: Installation) -> str:
    """Wait until one spare is ready, and return its pod name."""

    def is_ready() -> bool:
        plane = installation.plane
        token = (plane.home / "admin.token").read_text().strip()
        metrics = httpx.get(f"{plane.url}/metrics", headers={"Authorization": f"Bearer {token}"}).text
        return 'epochal_warm_drivers{state="ready"} 1' in metrics and len(spares(installation)) == 1

    eventually(is_ready, 600)
    return next(iter(spares(installation)))


def submit_with_defaults(installation: Installation, client: Client, name: str, **configuration: Any) -> None:
    artifact = client.artifacts.upload(installation.code)
    parameters = {"output": str(installation.shared / "out" / name)}
    client.applications.create(name, artifact.sha256, parameters=parameters, configuration=configuration)


def stop(installation: Installation, client: Client, name: str) -> None:
    pod = installation.pod_of(client, name)
    client.operations.wait(client.applications.stop(name), timeout_seconds=120)
    eventually(lambda: pod not in installation.project.pods(), 60)


def test_spare_becomes_a_driver_and_is_replaced(installation: Installation, client: Client) -> None:
    spare = ready_spare(installation)
    manifest = spares(installation)[spare]
    assert manifest["spec"]["automountServiceAccountToken"] is False and "epd_" not in str(manifest)
    submit_with_defaults(installation, client, "warm")
    installation.wait_for_epoch(client, "warm", 2)
    assert installation.pod_of(client, "warm") == spare
    assert installation.attempt(client, "warm") == 1
    labels = installation.project.pods()[spare]["metadata"]["labels"]
    assert (labels["epochal.dev/spare"], labels["epochal.dev/application"]) == ("taken", "warm")
    assert "this spare is ready" in installation.plane.run("logs", "warm").stdout
    # A restarted control plane finds the pod by its labels and keeps it running.
    installation.plane.restart(kill=True)
    epoch = installation.epoch(client, "warm")
    installation.wait_for_epoch(client, "warm", epoch + 2)
    assert (installation.pod_of(client, "warm"), installation.attempt(client, "warm")) == (spare, 1)
    # The next attempt uses the new spare.
    second = ready_spare(installation)
    assert second != spare
    installation.kill(spare)
    eventually(lambda: installation.attempt(client, "warm") == 2, 60)
    assert installation.pod_of(client, "warm") == second
    epoch = installation.epoch(client, "warm")
    installation.wait_for_epoch(client, "warm", epoch + 2)
    stop(installation, client, "warm")


def test_other_settings_start_cold_and_determine_the_next_spare(installation: Installation, client: Client) -> None:
    first = ready_spare(installation)
    installation.submit(client, "cold")
    installation.wait_for_epoch(client, "cold", 1)
    assert installation.pod_of(client, "cold").endswith("-1") and first != installation.pod_of(client, "cold")
    eventually(lambda: first not in installation.project.pods(), 60)
    alike = ready_spare(installation)
    installation.submit(client, "alike")
    installation.wait_for_epoch(client, "alike", 1)
    assert installation.pod_of(client, "alike") == alike
    for name in ("cold", "alike"):
        stop(installation, client, name)


def test_spare_has_executors(installation: Installation, client: Client) -> None:
    spark = {
        "spark.executor.instances": "1",
        "spark.executor.memory": "512m",
        "spark.kubernetes.executor.request.cores": "100m",
    }
    spread = {"master": f"k8s://{installation.cluster.url}", "spark": spark}
    installation.submit(client, "first", **spread)
    installation.wait_for_epoch(client, "first", 1)
    stop(installation, client, "first")
    spare = ready_spare(installation)
    executors = {name for name in installation.project.pods() if name.startswith(f"{spare}-exec-")}
    assert len(executors) == 1
    installation.submit(client, "second", **spread)
    started_at = time.monotonic()
    installation.wait_for_epoch(client, "second", 1)
    print(f"\nfrom the submission to the first commit: {time.monotonic() - started_at:.1f} s")
    assert installation.pod_of(client, "second") == spare
    assert executors <= set(installation.project.pods())
    stop(installation, client, "second")
    eventually(lambda: not executors & set(installation.project.pods()), 60)


@pytest.mark.parametrize("point", ["W1.offered", "W2.claimed", "W4.started"])
def test_kills_at_each_step_start_no_attempt_twice(
    cluster: KubernetesCluster, kubelet: Kubelet, tmp_path: Path, point: str
) -> None:
    fault = Fault(point, "kill")
    with installed(cluster, kubelet, tmp_path, fault, spare_drivers=1, spare_builders=0) as installation:
        plane = installation.plane
        if point == "W1.offered":  # the control plane is killed when its spare is ready
            eventually(lambda: not plane.process.running, 240)
            leftover_pods = set(spares(installation))
            plane.restart()
            with plane.client() as client:
                submit_with_defaults(installation, client, "flights")
                installation.wait_for_epoch(client, "flights", 1)
                eventually(lambda: not leftover_pods & set(installation.project.pods()), 180)
            return
        ready_spare(installation)
        with plane.client() as client:
            submit_with_defaults(installation, client, "flights")
        if point == "W2.claimed":  # killed after labelling the spare and before recording it
            eventually(lambda: not plane.process.running, 60)
            (claimed,) = [
                name
                for name, pod in installation.project.pods().items()
                if pod["metadata"]["labels"].get("epochal.dev/spare") == "taken"
            ]
            plane.restart()
        with plane.client() as client:
            installation.wait_for_epoch(client, "flights", 1)
            attempts = client.application("flights").executions.list()[0].attempts
            if point == "W2.claimed":
                assert [attempt.number for attempt in attempts] == [1]
                assert installation.pod_of(client, "flights") == claimed
            else:  # the driver is killed with its orders, so an attempt is lost
                assert [attempt.state for attempt in attempts] == ["lost", "running"]
            stop(installation, client, "flights")


def test_spares_end_with_their_control_plane(cluster: KubernetesCluster, kubelet: Kubelet, tmp_path: Path) -> None:
    with installed(cluster, kubelet, tmp_path, spare_drivers=1, spare_builders=0) as installation:
        ready_spare(installation)
        installation.plane.process.stop(signal.SIGTERM, 20)
        eventually(lambda: spares(installation) == {}, 30)
