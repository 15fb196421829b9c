"""Applications whose drivers and executors are pods: submitted, killed, adopted, stopped, and failing."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from epochal.client import Client
from tests.kit.kubernetes import KubernetesCluster
from tests.kit.kubernetes.kubelet import Kubelet
from tests.kit.waiting import eventually
from tests.kubernetes.installations import Installation, installed
from tests.kubernetes.projects import DRIVER

pytestmark = [pytest.mark.server, pytest.mark.long]


@pytest.fixture(scope="module")
def installation(
    cluster: KubernetesCluster, kubelet: Kubelet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    with installed(cluster, kubelet, tmp_path_factory.mktemp("installation")) as installation:
        yield installation


@pytest.fixture
def client(installation: Installation) -> Iterator[Client]:
    with installation.plane.client() as client:
        yield client


def test_driver_pod_is_killed_adopted_and_stopped(installation: Installation, client: Client) -> None:
    installation.submit(client, "sensors")
    installation.wait_for_epoch(client, "sensors", 2)
    name = installation.pod_of(client, "sensors")
    manifest = installation.project.pods()[name]
    assert manifest["spec"]["automountServiceAccountToken"] is False
    assert "epd_" not in str(manifest)
    assert "execution" in installation.plane.run("logs", "sensors").stdout

    pod = installation.kubelet.pod(installation.project.namespace, name)
    assert pod is not None and pod.containers[0].process is not None
    reached = installation.epoch(client, "sensors")
    pod.containers[0].process.kill()
    eventually(lambda: installation.pod_of(client, "sensors") != name, 60)
    installation.wait_for_epoch(client, "sensors", reached + 2)
    eventually(lambda: name not in installation.project.pods(), 60)
    assert "SIGKILL" in client.application("sensors").executions.list()[0].attempts[0].failure.message  # type: ignore[union-attr]

    attempt, name = installation.attempt(client, "sensors"), installation.pod_of(client, "sensors")
    installation.plane.restart(kill=True)
    reached = installation.epoch(client, "sensors")
    installation.wait_for_epoch(client, "sensors", reached + 2)
    assert (installation.attempt(client, "sensors"), installation.pod_of(client, "sensors")) == (attempt, name)

    client.operations.wait(client.applications.stop("sensors"), timeout_seconds=120)
    eventually(lambda: name not in installation.project.pods(), 60)
    log = installation.plane.run("logs", "sensors").stdout
    assert "the driver ends: finished" in log


def test_executors_are_pods_without_a_token(installation: Installation, client: Client) -> None:
    spark = {
        "spark.executor.instances": "1",
        "spark.executor.memory": "512m",
        "spark.kubernetes.executor.request.cores": "100m",
    }
    installation.submit(client, "spread", master=f"k8s://{installation.cluster.url}", spark=spark)
    installation.wait_for_epoch(client, "spread", 1)
    driver = installation.pod_of(client, "spread")
    pods = installation.project.pods()
    executors = [pod for name, pod in pods.items() if name.startswith(f"{driver}-exec-")]
    assert len(executors) == 1
    (executor,) = executors
    assert executor["spec"]["automountServiceAccountToken"] is False
    assert not any("projected" in volume for volume in executor["spec"]["volumes"])
    assert executor["spec"]["serviceAccountName"] == "epochal-executor"
    assert executor["metadata"]["ownerReferences"][0]["uid"] == pods[driver]["metadata"]["uid"]
    client.operations.wait(client.applications.stop("spread"), timeout_seconds=120)
    eventually(lambda: not any(name.startswith(driver) for name in installation.project.pods()), 60)


def test_driver_without_rights_for_executors_reports_it(installation: Installation, client: Client) -> None:
    cluster, namespace = installation.cluster, installation.project.namespace
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
    binding = cluster.get(f"{path}/{DRIVER}")
    installation.project.forbid(DRIVER)
    try:
        installation.submit(client, "forbidden", master=f"k8s://{cluster.url}")
        eventually(lambda: client.applications.get("forbidden").state == "failed", 120)
    finally:
        cluster.create(path, {key: binding[key] for key in ("roleRef", "subjects")} | {"metadata": {"name": DRIVER}})
    assert "may not create" in installation.show("forbidden")


def test_image_that_cannot_be_pulled_is_reported(installation: Installation, client: Client) -> None:
    """The image was available when the pipeline was built."""
    images, spark = installation.kubelet.images, {"spark.kubernetes.container.image": "test/missing:1"}
    images["test/missing:1"] = images["epochal:test"]
    installation.submit(client, "imageless", spark=spark, restart={"max_restarts": 1, "backoff_seconds": 0.1})
    installation.wait_for_epoch(client, "imageless", 1)
    client.operations.wait(client.applications.stop("imageless"), timeout_seconds=120)
    del images["test/missing:1"]
    client.applications.start("imageless")
    eventually(lambda: client.applications.get("imageless").state == "failed", 120)
    assert "'test/missing:1' cannot be pulled" in " ".join(installation.show("imageless").split())


def test_unschedulable_pod_is_reported_while_it_waits(installation: Installation, client: Client) -> None:
    installation.submit(client, "large", spark={"spark.kubernetes.driver.request.cores": "1000"})
    installation.eventually(lambda: "Insufficient cpu" in " ".join(installation.show("large").split()))
    assert client.applications.get("large").state == "starting"
    name = installation.pod_of(client, "large")
    client.operations.wait(client.applications.stop("large"), timeout_seconds=60)  # a driver has 120 s to stop
    assert client.applications.get("large").failure is None
    eventually(lambda: name not in installation.project.pods(), 60)


def test_drivers_survive_the_shutdown_of_the_control_plane(installation: Installation, client: Client) -> None:
    installation.submit(client, "lasting")
    installation.wait_for_epoch(client, "lasting", 1)
    name = installation.pod_of(client, "lasting")
    installation.plane.process.stop(signal.SIGTERM, 20)
    assert installation.project.pods()[name]["status"]["phase"] == "Running"
    installation.plane.restart()
    assert installation.pod_of(client, "lasting") == name
    client.operations.wait(client.applications.stop("lasting"), timeout_seconds=120)
