"""Spare drivers in pods: taken by an application, with executors and without, whoever is killed at which step; and gone
with who keeps them."""

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
    own = tmp_path_factory.mktemp("spares")
    with installed(cluster, kubelet, own, spare_drivers=1, spare_builders=0) as installation:
        yield installation


@pytest.fixture
def client(installation: Installation) -> Iterator[Client]:
    with installation.plane.client() as client:
        yield client


def spares(installation: Installation) -> dict[str, Any]:
    """Those that nobody has taken."""
    pods = installation.project.pods()
    return {name: pod for name, pod in pods.items() if pod["metadata"]["labels"].get("epochal.dev/spare") == "free"}


def ready(installation: Installation) -> str:
    """The name of the one that is ready."""

    def is_ready() -> bool:
        plane = installation.plane
        token = (plane.home / "admin.token").read_text().strip()
        metrics = httpx.get(f"{plane.url}/metrics", headers={"Authorization": f"Bearer {token}"}).text
        return 'epochal_warm_drivers{state="ready"} 1' in metrics and len(spares(installation)) == 1

    eventually(is_ready, 600)
    return next(iter(spares(installation)))


def submit_as_it_is(installation: Installation, client: Client, name: str, **configuration: Any) -> None:
    artifact = client.artifacts.upload(installation.code)
    parameters = {"output": str(installation.shared / "out" / name)}
    client.applications.create(name, artifact.sha256, parameters=parameters, configuration=configuration)


def stop(installation: Installation, client: Client, name: str) -> None:
    pod = installation.pod_of(client, name)
    client.operations.wait(client.applications.stop(name), timeout_seconds=120)
    eventually(lambda: pod not in installation.project.pods(), 60)


def test_a_spare_becomes_the_driver_of_an_application_and_another_takes_its_place(
    installation: Installation, client: Client
) -> None:
    spare = ready(installation)
    manifest = spares(installation)[spare]
    assert manifest["spec"]["automountServiceAccountToken"] is False and "epd_" not in str(manifest)
    submit_as_it_is(installation, client, "warm")
    installation.reaches(client, "warm", 2)
    assert installation.pod_of(client, "warm") == spare
    assert installation.attempt(client, "warm") == 1
    labels = installation.project.pods()[spare]["metadata"]["labels"]
    assert (labels["epochal.dev/spare"], labels["epochal.dev/application"]) == ("taken", "warm")
    assert "this spare is ready" in installation.plane.run("logs", "warm").stdout
    # A control plane that is killed and started again finds it by its labels, and leaves it alone.
    installation.plane.restart(kill=True)
    reached = installation.epoch(client, "warm")
    installation.reaches(client, "warm", reached + 2)
    assert (installation.pod_of(client, "warm"), installation.attempt(client, "warm")) == (spare, 1)
    # The spare that takes its place is what the next attempt begins as.
    second = ready(installation)
    assert second != spare
    installation.kill(spare)
    eventually(lambda: installation.attempt(client, "warm") == 2, 60)
    assert installation.pod_of(client, "warm") == second
    reached = installation.epoch(client, "warm")
    installation.reaches(client, "warm", reached + 2)
    stop(installation, client, "warm")


def test_what_a_spare_has_not_begun_with_starts_cold_and_is_what_the_next_one_is_like(
    installation: Installation, client: Client
) -> None:
    usual = ready(installation)
    installation.submit(client, "cold")
    installation.reaches(client, "cold", 1)
    assert installation.pod_of(client, "cold").endswith("-1") and usual != installation.pod_of(client, "cold")
    eventually(lambda: usual not in installation.project.pods(), 60)
    alike = ready(installation)
    installation.submit(client, "alike")
    installation.reaches(client, "alike", 1)
    assert installation.pod_of(client, "alike") == alike
    for name in ("cold", "alike"):
        stop(installation, client, name)


def test_a_spare_has_its_executors_too(installation: Installation, client: Client) -> None:
    spark = {
        "spark.executor.instances": "1",
        "spark.executor.memory": "512m",
        "spark.kubernetes.executor.request.cores": "100m",
    }
    spread = {"master": f"k8s://{installation.cluster.url}", "spark": spark}
    installation.submit(client, "first", **spread)
    installation.reaches(client, "first", 1)
    stop(installation, client, "first")
    spare = ready(installation)
    executors = {name for name in installation.project.pods() if name.startswith(f"{spare}-exec-")}
    assert len(executors) == 1
    installation.submit(client, "second", **spread)
    began = time.monotonic()
    installation.reaches(client, "second", 1)
    print(f"\nfrom the submission to the first commit: {time.monotonic() - began:.1f} s")
    assert installation.pod_of(client, "second") == spare
    assert executors <= set(installation.project.pods())
    stop(installation, client, "second")
    eventually(lambda: not executors & set(installation.project.pods()), 60)


@pytest.mark.parametrize("point", ["W1.offered", "W2.claimed", "W4.started"])
def test_no_attempt_begins_twice_whoever_is_killed_when(
    cluster: KubernetesCluster, kubelet: Kubelet, tmp_path: Path, point: str
) -> None:
    fault = Fault(point, "kill")
    with installed(cluster, kubelet, tmp_path, fault, spare_drivers=1, spare_builders=0) as installation:
        plane = installation.plane
        if point == "W1.offered":  # the control plane ends when it sees that its spare is ready
            eventually(lambda: not plane.process.running, 240)
            left = set(spares(installation))
            plane.restart()
            with plane.client() as client:
                submit_as_it_is(installation, client, "flights")
                installation.reaches(client, "flights", 1)
                eventually(lambda: not left & set(installation.project.pods()), 180)
            return
        ready(installation)
        with plane.client() as client:
            submit_as_it_is(installation, client, "flights")
        if point == "W2.claimed":  # it ends when the spare has its labels, and nobody has written it down
            eventually(lambda: not plane.process.running, 60)
            (claimed,) = [
                name
                for name, pod in installation.project.pods().items()
                if pod["metadata"]["labels"].get("epochal.dev/spare") == "taken"
            ]
            plane.restart()
        with plane.client() as client:
            installation.reaches(client, "flights", 1)
            attempts = client.application("flights").executions.list()[0].attempts
            if point == "W2.claimed":
                assert [attempt.number for attempt in attempts] == [1]
                assert installation.pod_of(client, "flights") == claimed
            else:  # the driver is killed with its orders: an attempt is lost, as whenever a driver is
                assert [attempt.state for attempt in attempts] == ["lost", "running"]
            stop(installation, client, "flights")


def test_spares_end_with_the_control_plane_that_keeps_them(
    cluster: KubernetesCluster, kubelet: Kubelet, tmp_path: Path
) -> None:
    with installed(cluster, kubelet, tmp_path, spare_drivers=1, spare_builders=0) as installation:
        ready(installation)
        installation.plane.process.stop(signal.SIGTERM, 20)
        eventually(lambda: spares(installation) == {}, 30)
