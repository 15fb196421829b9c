"""Pipelines built in pods: isolation of the author's code, removal of the pods, and errors."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epochal.client import Client
from epochal.errors import EpochalError
from tests.kit.kubernetes import KubernetesCluster
from tests.kit.kubernetes.kubelet import Kubelet
from tests.kit.waiting import eventually
from tests.kubernetes.installations import SMALL, Installation, installed
from tests.kubernetes.projects import BUILDER, CONTROL

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1200)]

HOSTILE = """
import glob, json, os, urllib.error, urllib.request


def _environment_of(process):
    try:
        with open(f"/proc/{process}/environ") as file:
            return file.read()
    except OSError:
        return ""


def _asked(path, method="GET", data=None):
    token = open(os.environ["EPOCHAL_ORDERS_TOKEN_FILE"]).read() if "EPOCHAL_ORDERS_TOKEN_FILE" in os.environ else TOKEN
    request = urllib.request.Request(URL + path, data, {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}, method=method)
    try:
        return urllib.request.urlopen(request, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code


_KEEPERS = [text for text in map(_environment_of, os.listdir("/proc")) if "EPOCHAL_CONTROL_PLANES=" in text]
_VARIABLES = dict(line.partition("=")[::2] for line in _KEEPERS[0].split(chr(0)) if line) if _KEEPERS else {}
URL = _VARIABLES["EPOCHAL_CONTROL_PLANES"]
TOKEN = open(_VARIABLES["EPOCHAL_ORDERS_TOKEN_FILE"]).read()
raise ValueError("found " + json.dumps({
    "variables": sorted(os.environ),
    "processes": sorted(text for text in os.listdir("/proc") if text.isdecimal()),
    "of_control_planes": [process for process in os.listdir("/proc") if "EPOCHAL_KUBERNETES_FILE" in _environment_of(process)],
    "api_token": os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token"),
    "others_work": _asked("/internal/v1/pods/OTHER_POD/work"),
    "others_answer": _asked("/internal/v1/pods/OTHER_POD/answer", "PUT", b"{}"),
    "others_orders": _asked("/internal/v1/executions/" + "0" * 32 + "/attempts/1/orders", "POST", b'{"token_sha256": "' + b"0" * 64 + b'"}'),
}) + " until here")
"""  # noqa: E501
SLOW = "import time; time.sleep(600)"


@pytest.fixture(scope="module")
def installation(
    cluster: KubernetesCluster, kubelet: Kubelet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    with installed(cluster, kubelet, tmp_path_factory.mktemp("builders")) as installation:
        yield installation


@pytest.fixture
def client(installation: Installation) -> Iterator[Client]:
    with installation.plane.client() as client:
        yield client


def builders(installation: Installation) -> dict[str, Any]:
    pods = installation.project.pods()
    return {name: pod for name, pod in pods.items() if name.startswith("epochal-builder-")}


def error_of_submission(
    installation: Installation, client: Client, code: str, folder: Path, **configuration: Any
) -> str:
    """Submit an application with this code, and return the message of the error."""
    path = folder / "flights.py"
    path.write_text(code)
    artifact = client.artifacts.upload(path)
    with pytest.raises(EpochalError) as raised:
        client.applications.create("flights", artifact.sha256, parameters={}, configuration=configuration)
    return " ".join(raised.value.message.split())


def test_builder_pod_has_no_rights_and_secrets_and_is_removed(installation: Installation, client: Client) -> None:
    eventually(lambda: len(builders(installation)) == 1, 60)
    ((name, pod),) = builders(installation).items()
    spec = pod["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == (BUILDER, False)
    assert [source for volume in spec["volumes"] for source in volume.get("projected", {}).get("sources", ())] == [
        {"serviceAccountToken": {"audience": "epochal", "expirationSeconds": 3600, "path": "token"}}
    ]
    assert (installation.plane.home / "admin.token").read_text().strip() not in json.dumps(pod)
    installation.submit(client, "sensors")
    # The used spare is replaced by another one.
    eventually(lambda: name not in builders(installation) and len(builders(installation)) == 1, 60)
    client.operations.wait(client.applications.stop("sensors"), timeout_seconds=120)


def test_author_code_cannot_reach_the_control_plane_or_other_builds(
    installation: Installation, client: Client, tmp_path: Path
) -> None:
    eventually(lambda: len(builders(installation)) == 1, 60)
    image = {"spark.kubernetes.driverEnv.MINE": "yes"}  # needs a new pod beside the spare
    (other,) = builders(installation)
    message = error_of_submission(
        installation, client, HOSTILE.replace("OTHER_POD", other), tmp_path, spark={**SMALL, **image}
    )
    found = json.loads(message.partition("found ")[2].partition(" until here")[0])
    assert not {"EPOCHAL_HOME", "EPOCHAL_DATABASE_URL", "EPOCHAL_ADMIN_TOKEN_FILE"} & set(found["variables"])
    assert found["of_control_planes"] == [] and found["api_token"] is False
    assert (found["others_work"], found["others_answer"], found["others_orders"]) == (401, 401, 401)


def test_image_that_cannot_be_pulled_fails_the_submission(
    installation: Installation, client: Client, tmp_path: Path
) -> None:
    spark = {"spark.kubernetes.container.image": "test/missing:1"}
    assert "'test/missing:1' cannot be pulled" in error_of_submission(installation, client, SLOW, tmp_path, spark=spark)


def test_refusals_of_the_cluster_are_reported_with_a_fix(
    installation: Installation, client: Client, tmp_path: Path
) -> None:
    project, new_builder = installation.project, {"spark.kubernetes.driverEnv.MINE": "yes"}
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"requests.memory": "1Mi"}}}
    project.cluster.create(f"{project.path}/resourcequotas", quota)
    eventually(lambda: "hard" in project.cluster.get(f"{project.path}/resourcequotas/small").get("status", {}), 60)
    try:
        message = error_of_submission(installation, client, SLOW, tmp_path, spark=new_builder)
    finally:
        project.cluster.delete(f"{project.path}/resourcequotas/small")
    assert "is exhausted for the builder's pod" in message and "`builder_memory`" in message
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{project.namespace}/rolebindings"
    binding = project.cluster.get(f"{path}/{CONTROL}")
    project.forbid(CONTROL)
    try:
        message = error_of_submission(installation, client, SLOW, tmp_path, spark=new_builder)
    finally:
        restored = {key: binding[key] for key in ("roleRef", "subjects")}
        project.cluster.create(path, restored | {"metadata": {"name": CONTROL}})
    assert "may not start pods in the namespace" in message


def test_builder_killed_for_memory_is_reported_to_the_author(
    installation: Installation, client: Client, tmp_path: Path, kubelet: Kubelet
) -> None:
    import threading

    new_builder = {"spark.kubernetes.driverEnv.MINE": "yes"}
    before = set(builders(installation))

    def kill() -> None:
        eventually(lambda: set(builders(installation)) - before, 60)
        (name,) = set(builders(installation)) - before
        eventually(lambda: _is_running(kubelet, installation, name), 60)
        pod = kubelet.pod(installation.project.namespace, name)
        assert pod is not None
        pod.kill_for_memory("builder")

    killer = threading.Thread(target=kill)
    killer.start()
    message = error_of_submission(installation, client, SLOW, tmp_path, spark=new_builder)
    killer.join()
    assert "OOMKilled" in message and "`builder_memory`" in message


def _is_running(kubelet: Kubelet, installation: Installation, name: str) -> bool:
    pod = kubelet.pod(installation.project.namespace, name)
    return pod is not None and bool(pod.containers) and pod.containers[0].process is not None


def test_builders_of_a_killed_control_plane_are_removed(
    installation: Installation, client: Client, tmp_path: Path
) -> None:
    import threading

    new_builder = {"spark.kubernetes.driverEnv.MINE": "yes"}
    eventually(lambda: len(builders(installation)) == 1, 60)
    before = set(builders(installation))
    caller = threading.Thread(
        target=lambda: error_of_submission(installation, client, SLOW, tmp_path, spark=new_builder)
    )
    caller.start()
    eventually(lambda: set(builders(installation)) - before, 60)
    leftover_pods = set(builders(installation))
    installation.plane.process.stop(signal.SIGKILL, 20)
    caller.join(120)
    installation.plane.restart()
    eventually(lambda: not leftover_pods & set(builders(installation)), 180)
