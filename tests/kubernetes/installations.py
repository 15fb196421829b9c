"""A control plane with a project on the test cluster, and its users' actions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from epochal.client import Client
from epochal.faults import ENVIRONMENT, Fault
from epochal.testing.drivers import encoded
from epochal.testing.servers.control_plane import ControlPlane, control_plane
from tests.kit.kubernetes import KubernetesCluster
from tests.kit.kubernetes.containers import Image
from tests.kit.kubernetes.kubelet import Kubelet
from tests.kit.waiting import eventually
from tests.kubernetes.projects import Project, make_project

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
    """A control plane outside the cluster, with the rights of one inside. Drivers share a folder with it."""

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

    def wait_for_epoch(self, client: Client, name: str, epoch: int) -> None:
        eventually(lambda: self.epoch(client, name) >= epoch, 600)

    def pod_of(self, client: Client, name: str) -> str:
        """Wait until the catalog has the pod of the latest attempt, and return its name."""

        def process() -> str | None:
            return client.application(name).executions.list()[0].attempts[-1].process

        eventually(lambda: process() is not None, 60)
        return str(process()).split("/")[1]

    def kill(self, pod: str) -> None:
        """Kill the process of a pod."""
        found = self.kubelet.pod(self.project.namespace, pod)
        assert found is not None and found.containers[0].process is not None
        found.containers[0].process.kill()

    def show(self, name: str) -> str:
        return self.plane.run("show", name).stdout


@contextmanager
def installed(
    cluster: KubernetesCluster, kubelet: Kubelet, folder: Path, fault: Fault | None = None, **further_settings: Any
) -> Iterator[Installation]:
    """``folder``: an empty folder. ``fault``: a fault of the control plane and its pods, which fires once."""
    project = make_project(cluster)
    shared = _claim_folder(cluster, project)
    environment_of_image = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if "JAVA_HOME" in os.environ:
        environment_of_image["JAVA_HOME"] = os.environ["JAVA_HOME"]
    kubelet.images["epochal:test"] = Image(
        environment=environment_of_image, places=[Path(sys.prefix), Path(__file__).parents[2]]
    )
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    # Of the control plane's folder, drivers see the store only.
    plane_folder = shared / "plane"
    visible_folders = (plane_folder / "home" / "store", shared / "out")
    mounts = [
        {"name": "data", "mountPath": str(place), "subPath": str(place.relative_to(shared))}
        for place in visible_folders
    ]

    def template(container: str) -> dict[str, Any]:
        return {"spec": {"volumes": [volume], "containers": [{"name": container, "volumeMounts": mounts}]}}

    defaults = {
        "images": ["test/*:*"],
        "template": template("driver"),
        "executor_template": template("executor"),
        "builder_cpu": "100m",
    }
    settings = project.settings("epochal:test", **{**defaults, **further_settings})
    file = folder / "kubernetes.json"
    file.write_text(settings.model_dump_json())
    code = folder / "sensors.py"
    code.write_text(SENSORS)
    environment = {"EPOCHAL_KUBERNETES_FILE": str(file)}
    if fault is not None:
        (shared / "out").mkdir(parents=True, exist_ok=True)
        environment[ENVIRONMENT] = encoded([replace(fault, once=str(shared / "out" / "fault-has-fired"))])
    with control_plane(plane_folder, environment) as plane:
        yield Installation(cluster, kubelet, project, plane, shared, code)
    project.end()


def _claim_folder(cluster: KubernetesCluster, project: Project) -> Path:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = f"{project.path}/persistentvolumeclaims"
    cluster.create(claims, {"metadata": {"name": "data"}, "spec": spec})
    eventually(lambda: cluster.get(f"{claims}/data")["status"].get("phase") == "Bound", 60)
    volume = cluster.get(f"{claims}/data")["spec"]["volumeName"]
    return Path(cluster.get(f"/api/v1/persistentvolumes/{volume}")["spec"]["hostPath"]["path"])
