"""Builds of pipelines in pods, whose program runs as processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from epochal.driver.orders import CONTROL_PLANES_VARIABLE, TOKEN_FILE_VARIABLE
from epochal.errors import ArtifactError, Conflict, EnvironmentProblem, PipelineError
from epochal.service.domain.kubernetes.conditions import Phase, PodCondition
from epochal.service.runtime.builder.kubernetes_builder import KubernetesBuilder
from epochal.service.runtime.launchers.kubernetes.warm_pods import WarmPod
from tests.kit.waiting import eventually
from tests.service.pod_clusters import NAMESPACE, PodCluster
from tests.service.pod_clusters import cluster as cluster


@dataclass
class ProcessPods:
    """Runs the pods' program as processes of this machine, in place of a cluster."""

    cluster: PodCluster
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    condition_of_all: PodCondition | None = None
    kept_warm: list[WarmPod] = field(default_factory=list)

    def open(self) -> None: ...

    def close(self) -> None: ...

    def take(self, namespace: str) -> WarmPod | None:
        assert namespace == NAMESPACE
        return self.kept_warm.pop() if self.kept_warm else None

    def make(self, namespace: str, spark: Any, sized: bool, warm: bool = False) -> WarmPod:
        name = f"builder-{len(self.processes)}"
        home = self.cluster.folder / name
        home.mkdir()
        self.cluster.kept.expect(name)
        environment = {
            **os.environ,
            "HOME": str(home),
            CONTROL_PLANES_VARIABLE: self.cluster.settings.internal_url,
            TOKEN_FILE_VARIABLE: str(self.cluster.token_file(name, f"uid-{name}")),
        }
        command = [sys.executable, "-m", "epochal.service.runtime.builder.pod", name, "0"]
        self.processes.append(subprocess.Popen(command, env=environment, start_new_session=True))
        self.cluster.kept.identify(name, f"{NAMESPACE}/{name}/uid-{name}")
        return WarmPod(NAMESPACE, name, f"uid-{name}", warm)

    def condition(self, pod: WarmPod) -> PodCondition:
        return self.condition_of_all or PodCondition(Phase.RUNNING)

    def remove(self, pod: WarmPod) -> None:
        self.cluster.kept.forget(pod.name)


@pytest.fixture
def pods(cluster: PodCluster) -> Iterator[ProcessPods]:
    made = ProcessPods(cluster)
    yield made
    for process in made.processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


@pytest.fixture
def builder(cluster: PodCluster, pods: ProcessPods) -> KubernetesBuilder:
    assert cluster.settings.kubernetes is not None
    return KubernetesBuilder(cluster.settings.kubernetes, pods, cluster.kept)  # type: ignore[arg-type]


def pipeline(cluster: PodCluster, code: str) -> Path:
    path = cluster.folder / "flights.py"
    path.write_text(code)
    return path


PIPELINE = """
from epochal import Pipeline
from epochal.connectors import files


def build() -> Pipeline:
    pipeline = Pipeline("flights")
    rows = pipeline.read("rows", files.source("/in/*", format="json", schema="carrier string"))
    rows.key_by("carrier").aggregate("counts", n="count(*)").write("out", files.sink("/out"))
    return pipeline
"""


@pytest.mark.alternating(2)
def test_pipeline_is_built_in_a_pod_that_ends_afterwards(
    cluster: PodCluster, builder: KubernetesBuilder, pods: Any
) -> None:
    graph = builder.describe("default", pipeline(cluster, PIPELINE), {})
    assert (graph.name, dict(graph.sinks)) == ("flights", {"out": "files:/out"})
    assert pods.processes[0].wait(60) == 0
    assert list(cluster.settings.pods_directory.iterdir()) == []


@pytest.mark.alternating(2)
def test_code_that_exits_or_raises_is_reported_to_the_author(cluster: PodCluster, builder: KubernetesBuilder) -> None:
    with pytest.raises(PipelineError, match="ended its process"):
        builder.describe("default", pipeline(cluster, "import os; os._exit(9)"), {})
    with pytest.raises(ArtifactError, match="no such carrier"):
        builder.describe("default", pipeline(cluster, "raise ValueError('no such carrier')"), {})


@pytest.mark.alternating(2)
def test_cancelled_build_ends_its_pod(cluster: PodCluster, builder: KubernetesBuilder, pods: ProcessPods) -> None:
    code = pipeline(cluster, "import time; time.sleep(600)")

    def meanwhile() -> None:
        if cluster.kept.has_begun("builder-0"):
            raise Conflict("cancelled")

    with pytest.raises(Conflict, match="cancelled"):
        builder.rekey("default", code, {}, _configuration(), _rekey_of(cluster), meanwhile)
    assert pods.processes[0].wait(60) == 0


def _configuration() -> Any:
    from epochal.contracts.configuration import Configuration

    return Configuration()


def _rekey_of(cluster: PodCluster) -> Any:
    from epochal.contracts.catalog import ManifestReference
    from epochal.contracts.identity import EpochKey
    from epochal.service.domain.building import RekeyOf

    head = ManifestReference(branch="b", epoch=1, path="b/manifests/1.json", sha256="0" * 64)
    return RekeyOf(application="flights", store=cluster.settings.store_url, head=head, at=EpochKey("c", 2), by="ada")


def test_pod_that_ends_or_does_not_start_is_an_error_with_its_cause(
    cluster: PodCluster, builder: KubernetesBuilder, pods: ProcessPods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessPods, "make", _never_begins)
    pods.condition_of_all = PodCondition(Phase.ENDED, "The image 'missing/image:1' cannot be pulled.")
    with pytest.raises(EnvironmentProblem, match=r"has ended.*missing/image:1"):
        builder.describe("default", pipeline(cluster, PIPELINE), {})
    pods.condition_of_all = PodCondition(Phase.ENDED, "The builder was killed for its memory (OOMKilled): ..", -9)
    with pytest.raises(PipelineError, match="OOMKilled"):
        builder.describe("default", pipeline(cluster, PIPELINE), {})
    monkeypatch.setattr(builder, "_settings", builder._settings.model_copy(update={"start_seconds": 0.2}))
    pods.condition_of_all = PodCondition(Phase.WAITING, "No node takes the pod.")
    with pytest.raises(EnvironmentProblem, match=r"has not started within 0.2 s. No node takes the pod"):
        builder.describe("default", pipeline(cluster, PIPELINE), {})
    assert list(cluster.settings.pods_directory.iterdir()) == []


def _never_begins(pods: ProcessPods, spark: Any, sized: bool, warm: bool = False) -> WarmPod:
    pods.cluster.kept.expect("none")
    pods.cluster.kept.identify("none", f"{NAMESPACE}/none/uid-none")
    return WarmPod(NAMESPACE, "none", "uid-none", warm)


@pytest.mark.alternating(2)
def test_warm_pod_that_does_not_answer_is_replaced(
    cluster: PodCluster, builder: KubernetesBuilder, pods: ProcessPods
) -> None:
    dead = _never_begins(pods, {}, False, warm=True)
    pods.kept_warm.append(dead)
    lost = PodCondition(Phase.ENDED, "The node of the pod is lost.")
    usual = pods.condition
    pods.condition = lambda pod: lost if pod is dead else usual(pod)  # type: ignore[method-assign]
    assert builder.describe("default", pipeline(cluster, PIPELINE), {}).name == "flights"
    assert len(pods.processes) == 1
    eventually(lambda: list(cluster.settings.pods_directory.iterdir()) == [], 10)
