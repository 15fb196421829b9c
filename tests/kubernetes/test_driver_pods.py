"""Applications whose drivers and executors are pods: submitted, killed, adopted, stopped; and some that cannot run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from epochal.client import Client
from epochal.testing.servers.control_plane import ControlPlane, control_plane
from epochal.testing.servers.kubernetes import KubernetesCluster
from epochal.testing.servers.kubernetes.containers import Image
from epochal.testing.servers.kubernetes.kubelet import Kubelet
from tests.kubernetes.projects import DRIVER, Project, make_project
from tests.waiting import eventually

pytestmark = [pytest.mark.server, pytest.mark.long]

SENSORS = """
from epochal import Pipeline
from epochal.connectors import files, generator
from pydantic import BaseModel


class Parameters(BaseModel):
    output: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("sensors")
    columns = {"sensor": "concat('s', noise % 3)", "value": "noise % 1000"}
    readings = pipeline.read("readings", generator.source(columns, rate=200))
    highest = readings.key_by("sensor").aggregate("highest", readings="count(*)", highest="max(value)")
    highest.write("out", files.sink(parameters.output, mode="updates"))
    return pipeline
"""
SMALL = {"spark.driver.memory": "512m", "spark.kubernetes.driver.request.cores": "100m"}


@dataclass
class Installation:
    """A control plane beside the cluster, with the rights of one in it; drivers share a folder with it by a claim."""

    cluster: KubernetesCluster
    kubelet: Kubelet
    project: Project
    plane: ControlPlane
    shared: Path
    code: Path

    def submit(self, client: Client, name: str, **configuration: Any) -> None:
        configuration["spark"] = {**SMALL, **configuration.get("spark", {})}
        artifact = client.artifacts.upload(self.code)
        parameters = {"output": str(self.shared / "out" / name)}
        client.applications.create(name, artifact.sha256, parameters=parameters, configuration=configuration)

    def attempt(self, client: Client, name: str) -> int:
        return client.application(name).executions.list()[0].attempts[-1].number

    def epoch(self, client: Client, name: str) -> int:
        head = client.applications.get(name).head
        return 0 if head is None else head.epoch

    def reaches(self, client: Client, name: str, epoch: int) -> None:
        eventually(lambda: self.epoch(client, name) >= epoch, 180)

    def pod_of(self, client: Client, name: str) -> str:
        """The name of the pod of the latest attempt."""
        execution = client.application(name).executions.list()[0]
        process = execution.attempts[-1].process
        assert process is not None
        return process.split("/")[1]

    def show(self, name: str) -> str:
        return self.plane.run("show", name).stdout


@pytest.fixture(scope="module")
def installation(
    cluster: KubernetesCluster, kubelet: Kubelet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    project = make_project(cluster)
    shared = _claimed(cluster, project)
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if "JAVA_HOME" in os.environ:
        environment["JAVA_HOME"] = os.environ["JAVA_HOME"]
    kubelet.images["epochal:test"] = Image(
        environment=environment, places=[Path(sys.prefix), Path(__file__).parents[2]]
    )
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    # Of what the control plane has there, drivers see the store alone.
    folder = shared / "plane"
    places = (folder / "home" / "store", shared / "out")
    mounts = [{"name": "data", "mountPath": str(place), "subPath": str(place.relative_to(shared))} for place in places]

    def template(container: str) -> dict[str, Any]:
        return {"spec": {"volumes": [volume], "containers": [{"name": container, "volumeMounts": mounts}]}}

    settings = project.settings(
        "epochal:test", images=["nobody/*:*"], template=template("driver"), executor_template=template("executor")
    )
    own = tmp_path_factory.mktemp("installation")
    file = own / "kubernetes.json"
    file.write_text(settings.model_dump_json())
    code = own / "sensors.py"
    code.write_text(SENSORS)
    with control_plane(folder, {"EPOCHAL_KUBERNETES_FILE": str(file)}) as plane:
        yield Installation(cluster, kubelet, project, plane, shared, code)
    project.end()


def _claimed(cluster: KubernetesCluster, project: Project) -> Path:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = f"{project.path}/persistentvolumeclaims"
    cluster.create(claims, {"metadata": {"name": "data"}, "spec": spec})
    eventually(lambda: cluster.get(f"{claims}/data")["status"].get("phase") == "Bound", 60)
    volume = cluster.get(f"{claims}/data")["spec"]["volumeName"]
    return Path(cluster.get(f"/api/v1/persistentvolumes/{volume}")["spec"]["hostPath"]["path"])


@pytest.fixture
def client(installation: Installation) -> Iterator[Client]:
    with installation.plane.client() as client:
        yield client


def test_a_driver_in_a_pod_is_killed_adopted_and_stopped(installation: Installation, client: Client) -> None:
    installation.submit(client, "sensors")
    installation.reaches(client, "sensors", 2)
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
    installation.reaches(client, "sensors", reached + 2)
    eventually(lambda: name not in installation.project.pods(), 60)
    assert "SIGKILL" in client.application("sensors").executions.list()[0].attempts[0].failure.message  # type: ignore[union-attr]

    attempt, name = installation.attempt(client, "sensors"), installation.pod_of(client, "sensors")
    installation.plane.restart(kill=True)
    reached = installation.epoch(client, "sensors")
    installation.reaches(client, "sensors", reached + 2)
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
    installation.reaches(client, "spread", 1)
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


def test_a_driver_that_may_not_start_executors_says_so(installation: Installation, client: Client) -> None:
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


def test_an_image_that_cannot_be_pulled_is_shown(installation: Installation, client: Client) -> None:
    image = {"spark.kubernetes.container.image": "nobody/has:it"}
    installation.submit(client, "imageless", spark=image, restart={"max_restarts": 1, "backoff_seconds": 0.1})
    eventually(lambda: client.applications.get("imageless").state == "failed", 120)
    assert "'nobody/has:it' cannot be pulled" in " ".join(installation.show("imageless").split())


def test_a_pod_that_waits_for_a_node_says_so_meanwhile(installation: Installation, client: Client) -> None:
    installation.submit(client, "large", spark={"spark.kubernetes.driver.request.cores": "1000"})
    eventually(lambda: "Insufficient cpu" in " ".join(installation.show("large").split()), 60)
    assert client.applications.get("large").state == "starting"
    name = installation.pod_of(client, "large")
    client.operations.wait(client.applications.stop("large"), timeout_seconds=60)  # a driver has 120 s to stop
    assert client.applications.get("large").failure is None
    eventually(lambda: name not in installation.project.pods(), 60)


def test_a_control_plane_that_is_asked_to_end_leaves_drivers_alone(installation: Installation, client: Client) -> None:
    installation.submit(client, "lasting")
    installation.reaches(client, "lasting", 1)
    name = installation.pod_of(client, "lasting")
    installation.plane.process.stop(signal.SIGTERM, 20)
    assert installation.project.pods()[name]["status"]["phase"] == "Running"
    installation.plane.restart()
    assert installation.pod_of(client, "lasting") == name
    client.operations.wait(client.applications.stop("lasting"), timeout_seconds=120)
