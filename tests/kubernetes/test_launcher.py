"""Drivers as pods of a real cluster: the contract of launchers, and failures specific to pods."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from epochal.driver.orders import DriverOrders
from epochal.errors import EnvironmentProblem, LauncherUnavailable, OptionError
from epochal.service.domain.executions import DriverName
from epochal.service.domain.kubernetes.conditions import PodRefused
from epochal.service.runtime.launchers.base import Launcher, ProcessReference
from epochal.service.runtime.launchers.kubernetes.launcher import KubernetesLauncher
from tests.kit.kubernetes import KubernetesCluster
from tests.kit.kubernetes.containers import Image
from tests.kit.kubernetes.kubelet import Kubelet
from tests.kit.launching import EXECUTION, SLEEP, LauncherContract, Launching, orders_of
from tests.kit.waiting import eventually
from tests.kubernetes.projects import CONTROL, Project, make_project, scripted_python

pytestmark = [pytest.mark.server, pytest.mark.long]

NAME = f"{EXECUTION}-1"


@pytest.fixture(scope="module")
def image(kubelet: Kubelet, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image whose ``python`` runs the program of the test."""
    folder = scripted_python(tmp_path_factory.mktemp("image") / "bin", sys.executable)
    # Listed as places, because a volume at /tmp could hide a checkout there.
    places = [folder, Path(sys.prefix)]
    kubelet.images["scripted:1"] = Image(environment={"PATH": f"{folder}:{os.environ['PATH']}"}, places=places)
    return "scripted:1"


@pytest.fixture
def project(cluster: KubernetesCluster, kubelet: Kubelet) -> Iterator[Project]:
    project = make_project(cluster)
    yield project
    project.end()


Make = Callable[..., KubernetesLauncher]


@pytest.fixture
def make(project: Project, image: str, tmp_path: Path) -> Iterator[Make]:
    """Creates launchers with the settings of a control plane, and further settings."""
    launchers: list[KubernetesLauncher] = []

    def make(**settings: Any) -> KubernetesLauncher:
        own = project.settings(**{"image": image, **settings})
        launchers.append(KubernetesLauncher(own, tmp_path / "logs"))
        launchers[-1].open()
        return launchers[-1]

    yield make
    for launcher in launchers:
        launcher.close()


@pytest.fixture
def launching(make: Make, tmp_path: Path) -> Launching:
    def launcher(_: str) -> Launcher:
        return make()

    return Launching(
        launcher,
        lambda attempt, program: orders_of(tmp_path, attempt, {"spark.kubernetes.driverEnv.PROGRAM": program}),
        tmp_path / "logs",
    )


class TestKubernetesLauncher(LauncherContract):
    pass


def wait_for_explanation(launcher: Launcher, reference: ProcessReference, words: str) -> None:
    eventually(lambda: words in (launcher.explain(reference) or ""), 60)


def test_new_pod_of_the_same_name_is_another_driver(launching: Launching, project: Project) -> None:
    launcher, reference = launching.launch(SLEEP)
    launching.up(launcher, reference)
    project.cluster.delete(f"{project.path}/pods/{NAME}", {"gracePeriodSeconds": 0})
    assert launching.ended(launcher, reference) in (None, -9)
    wait_for_explanation(launcher, reference, "was deleted")
    second = launcher.launch(launching.orders(1, SLEEP))
    assert second != reference
    launcher.terminate(reference, kill=True)
    launching.up(launcher, second)
    assert not launcher.alive(reference) and launcher.alive(second)


def test_foreign_pod_of_the_same_name_is_not_touched(launching: Launching, project: Project, image: str) -> None:
    container = {"name": "main", "image": image, "command": ["sleep", "600"]}
    container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    restricted = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    body = {"metadata": {"name": NAME}, "spec": {"containers": [container], "securityContext": restricted}}
    project.cluster.create(f"{project.path}/pods", body)
    launcher = launching.make(SLEEP)
    with pytest.raises(EnvironmentProblem, match="not a driver of this attempt"):
        launcher.launch(launching.orders(1, SLEEP))
    assert launcher.drivers() == {}
    assert NAME in project.pods()


def test_driver_killed_for_memory_is_explained(launching: Launching, project: Project, kubelet: Kubelet) -> None:
    launcher, reference = launching.launch(SLEEP)
    launching.up(launcher, reference)
    pod = kubelet.pod(project.namespace, NAME)
    assert pod is not None
    pod.kill_for_memory("driver")
    assert launching.ended(launcher, reference) == -9
    wait_for_explanation(launcher, reference, "limit of 64Mi")


def test_evicted_driver_has_ended_and_is_explained(launching: Launching, project: Project, kubelet: Kubelet) -> None:
    launcher, reference = launching.launch(SLEEP)
    launching.up(launcher, reference)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    message = "The node was low on resource: ephemeral-storage."
    status = {"phase": "Failed", "reason": "Evicted", "message": message}
    kubelet.set_status(project.namespace, NAME, {**status, "conditions": [{**condition, "message": message}]})
    eventually(lambda: not launcher.alive(reference), 60)
    wait_for_explanation(launcher, reference, "lacks memory or disk space, or is shutting down. The node was low on")


def test_pod_without_image_has_ended(launching: Launching, make: Make, project: Project) -> None:
    launcher = make(image="test/missing:1")
    reference = launcher.launch(launching.orders(1, SLEEP))
    assert launching.ended(launcher, reference) is None
    wait_for_explanation(launcher, reference, "'test/missing:1' cannot be pulled")
    launcher.terminate(reference, kill=True)
    eventually(lambda: project.pods() == {}, 60)


def test_image_that_is_not_allowed_is_refused(launching: Launching, make: Make, project: Project) -> None:
    orders = orders_of(Path("/"), 1, {"spark.kubernetes.container.image": "evil:1"})
    with pytest.raises(EnvironmentProblem, match="evil:1"):
        make().launch(orders)
    assert project.pods() == {}


def test_unschedulable_pod_is_alive_and_explained(launching: Launching, make: Make) -> None:
    launcher = make(cpu="1000")
    reference = launcher.launch(launching.orders(1, SLEEP))
    wait_for_explanation(launcher, reference, "Insufficient cpu")
    assert launcher.alive(reference)


def test_missing_volume_is_named(launching: Launching, make: Make) -> None:
    volume = {"name": "site", "configMap": {"name": "none-such"}}
    launcher = make(template={"spec": {"volumes": [volume]}})
    reference = launcher.launch(launching.orders(1, SLEEP))
    wait_for_explanation(launcher, reference, "none-such")
    assert launcher.alive(reference)


def test_launch_after_an_exhausted_quota_succeeds(launching: Launching, project: Project) -> None:
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"requests.memory": "1Mi"}}}
    project.cluster.create(f"{project.path}/resourcequotas", quota)
    eventually(lambda: "hard" in project.cluster.get(f"{project.path}/resourcequotas/small").get("status", {}), 60)
    launcher = launching.make(SLEEP)
    with pytest.raises(PodRefused, match=r"quota.*small"):
        launcher.launch(launching.orders(1, SLEEP))
    project.cluster.delete(f"{project.path}/resourcequotas/small")
    reference = launcher.launch(launching.orders(2, SLEEP))
    assert launcher.alive(reference)


def test_missing_rights_are_reported(launching: Launching, project: Project) -> None:
    launcher = launching.make(SLEEP)
    assert launcher.drivers() == {}
    project.forbid(CONTROL)
    with pytest.raises(PodRefused, match="may not start pods"):
        launcher.launch(launching.orders(1, SLEEP))
    later = launching.make(SLEEP)
    eventually(lambda: "may not" in _check_error(later) or "forbidden" in _check_error(later), 60)


def _check_error(launcher: Launcher) -> str:
    try:
        launcher.check()
    except LauncherUnavailable as error:
        return error.message
    return ""


def test_template_that_violates_pod_security_is_refused(launching: Launching, make: Make) -> None:
    launcher = make(template={"spec": {"hostNetwork": True}})
    with pytest.raises(EnvironmentProblem, match=r"does not admit.*hostNetwork"):
        launcher.launch(launching.orders(1, SLEEP))


def test_namespace_of_the_control_plane_is_refused(project: Project, image: str, tmp_path: Path) -> None:
    settings = project.settings(image, own_namespace=project.namespace)
    with pytest.raises(OptionError, match="the control plane's own"):
        KubernetesLauncher(settings, tmp_path)


def test_unreachable_cluster_raises_launcher_unavailable(
    launching: Launching, make: Make, tmp_path: Path, cluster: KubernetesCluster
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(cluster.kubeconfig().read_text().replace(cluster.url, "https://127.0.0.1:1"))
    launcher = make(kubeconfig=kubeconfig)
    with pytest.raises(LauncherUnavailable):
        launcher.check()
    with pytest.raises(LauncherUnavailable):
        launcher.launch(launching.orders(1, SLEEP))
    with pytest.raises(LauncherUnavailable):
        launcher.alive(ProcessReference(identity="a/b/c"))


def test_pod_of_a_lost_node_is_removed(
    cluster: KubernetesCluster, launching: Launching, project: Project, image: str, kubelet: Kubelet
) -> None:
    def on(node: str, attempt: int) -> DriverOrders:
        selector = {
            "spark.kubernetes.node.selector.kubernetes.io/hostname": node,
            "spark.kubernetes.driverEnv.PROGRAM": SLEEP,
        }
        return orders_of(Path("/"), attempt, selector)

    with Kubelet(cluster, kubelet.images, "node-lost", number=7) as lost:
        launcher = launching.make(SLEEP)
        reference = launcher.launch(on("node-lost", 1))
        launching.up(launcher, reference)
        lost.lose(end=False)
        launcher.terminate(reference, kill=True)
        second = launcher.launch(on("node-1", 2))
        launching.up(launcher, second, 2)

        def is_removed() -> bool:
            launcher.terminate(reference, kill=True)
            return DriverName(EXECUTION, 1) not in launcher.drivers()

        eventually(is_removed, 90)
        assert not launcher.alive(reference) and launcher.alive(second)


def test_log_lines_are_copied_once(launching: Launching, make: Make, tmp_path: Path) -> None:
    program = "import time\nfor number in range(40): print('line', number, flush=True); time.sleep(0.1)\nprint('end')"
    launcher = make()
    reference = launcher.launch(launching.orders(1, program))

    def has_line() -> bool:
        launcher.bring_log(reference)
        return "line 3" in launching.log()

    eventually(has_line, 60)
    launcher.close()
    successor = make()
    assert launching.ended(successor, reference) == 0
    successor.explain(reference)
    assert launching.log().splitlines() == [*(f"line {number}" for number in range(40)), "end"]


STORE_VARIABLES = """
import os
print(os.environ.get("AWS_SECRET_ACCESS_KEY"), os.environ.get("AWS_REGION"), os.environ.get("AWS_ROLE_ARN"))
print("up", flush=True)
"""


def test_pod_reads_the_secret_of_the_store(
    make: Make, launching: Launching, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control plane's own variables do not reach it. A missing Secret ends the attempt, and is named."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-control-plane")
    monkeypatch.setenv("AWS_ROLE_ARN", "of-the-control-plane")
    launcher = make(store_secret="epochal-store", store_variables={"AWS_REGION": "eu-north-1"})
    reference = launcher.launch(launching.orders(1, STORE_VARIABLES))
    launching.ended(launcher, reference)
    wait_for_explanation(launcher, reference, "epochal-store")

    data = {"AWS_SECRET_ACCESS_KEY": base64.b64encode(b"of-the-store").decode()}
    project.cluster.create(f"{project.path}/secrets", {"metadata": {"name": "epochal-store"}, "data": data})
    reference = launcher.launch(launching.orders(2, STORE_VARIABLES))
    assert launching.ended(launcher, reference) == 0, launcher.explain(reference)
    launcher.explain(reference)  # waits for the end of the log
    assert launching.log(2).split() == ["of-the-store", "eu-north-1", "None", "up"]
    assert "of-the-control-plane" not in str(project.pods())
