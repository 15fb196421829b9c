"""Failures of pods in the output of `epochal show`: the state, the cause and the fix."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Protocol

import pytest

from epochal.client import Client
from epochal.driver.orders import TOKEN_FILE_VARIABLE
from epochal.errors import EnvironmentProblem
from tests.kit.kubernetes.containers import Image
from tests.kit.waiting import eventually
from tests.kubernetes.installations import Installation
from tests.kubernetes.projects import CONTROL, EXECUTOR
from tests.kubernetes.test_driver_pods import client, installation

__all__ = ["client", "installation"]

pytestmark = [pytest.mark.server, pytest.mark.long]

NO_RESTARTS = {"max_restarts": 0}
NEW_BUILDER = {"spark.kubernetes.driverEnv.OWN": "yes"}
"""A setting that no existing builder has, so that the build needs a new pod."""
EXPIRED = """
import os, time
from pathlib import Path
import jwt
file = os.environ["{variable}"]
token = Path(file).read_text()
claims = jwt.decode(token, options={{"verify_signature": False}})
late = {{**claims, "exp": int(time.time()) - 3600, "iat": int(time.time()) - 7200, "nbf": int(time.time()) - 7200}}
kid = jwt.get_unverified_header(token)["kid"]
key = Path("{folder}/accounts.key").read_text()
Path("/tmp/token").write_text(jwt.encode(late, key, algorithm="RS256", headers={{"kid": kid}}))
"""
"""Writes the pod's own token with a past expiry, as if the node had not renewed it."""

DRIVER, BUILDER = "epochal.driver", "epochal.service.runtime.builder.pod"


class MakeImage(Protocol):
    def __call__(self, name: str, script: str, module: str = DRIVER) -> dict[str, str]: ...


@pytest.fixture
def make_image(installation: Installation, tmp_path: Path) -> MakeImage:
    """Creates an image whose ``python`` runs a script before a module, and returns the Spark options that select it."""

    def make(name: str, script: str, module: str = DRIVER) -> dict[str, str]:
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(installation.cluster.folder / "accounts.key", folder)
        program = EXPIRED.format(variable=TOKEN_FILE_VARIABLE, folder=folder)
        (folder / "expired.py").write_text(program)
        python = folder / "python"
        script = script.format(folder=folder, python=sys.executable, variable=TOKEN_FILE_VARIABLE)
        before = f'case "$2" in {module}) {script};; esac'
        python.write_text(f'#!/bin/sh\n{before}\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        environment = dict(installation.kubelet.images["epochal:test"].environment)
        environment["PATH"] = f"{folder}:{os.environ['PATH']}"
        places = [folder, Path(sys.prefix), Path(__file__).parents[2]]
        installation.kubelet.images[f"test/{name}:1"] = Image(environment=environment, places=places)
        return {"spark.kubernetes.container.image": f"test/{name}:1"}

    return make


def wait_for_state(installation: Installation, client: Client, name: str, state: str = "failed") -> str:
    """Wait until the application is in a state; return the output of ``epochal show`` in one line."""
    eventually(lambda: client.applications.get(name).state == state, 180)
    return " ".join(installation.show(name).split())


def test_expired_token_is_reported(installation: Installation, client: Client, make_image: MakeImage) -> None:
    spark = make_image("expired", "{python} {folder}/expired.py && export {variable}=/tmp/token")
    installation.submit(client, "late", spark=spark, restart=NO_RESTARTS)
    output = wait_for_state(installation, client, "late")
    assert "there are no orders: The token has expired" in output, output


def test_token_of_another_account_is_reported(
    installation: Installation, client: Client, make_image: MakeImage
) -> None:
    project = installation.project
    foreign = installation.cluster.account_token(project.namespace, EXECUTOR, ["epochal"])
    spark = make_image("foreign", f"echo {foreign} > /tmp/token; export {{variable}}=/tmp/token")
    installation.submit(client, "foreign", spark=spark, restart=NO_RESTARTS)
    output = wait_for_state(installation, client, "foreign")
    assert "there are no orders: The token was not issued by a cluster for a pod" in output, output
    assert foreign not in output + installation.plane.run("logs", "foreign").stdout


def test_expired_token_of_a_builder_is_reported(
    installation: Installation, client: Client, make_image: MakeImage
) -> None:
    spark = make_image("unbuilt", "{python} {folder}/expired.py && export {variable}=/tmp/token", BUILDER)
    with pytest.raises(EnvironmentProblem, match=r"was to build the pipeline has ended. .* The token has expired"):
        installation.submit(client, "unbuilt", spark=spark)


def test_read_only_store_is_reported(installation: Installation, client: Client, make_image: MakeImage) -> None:
    store = installation.shared / "plane" / "home" / "store"
    spark = make_image("readonly", f"mount -o remount,bind,ro {store}")
    installation.submit(client, "readonly", spark=spark, restart=NO_RESTARTS, tolerable_failed_epochs=0)
    output = wait_for_state(installation, client, "readonly")
    assert "cannot be written" in output and "Drivers and the control plane require" in output, output


def test_driver_killed_for_memory_is_reported(installation: Installation, client: Client) -> None:
    installation.submit(client, "hungry", restart=NO_RESTARTS)
    installation.wait_for_epoch(client, "hungry", 1)
    pod = installation.kubelet.pod(installation.project.namespace, installation.pod_of(client, "hungry"))
    assert pod is not None
    pod.kill_for_memory("driver")
    output = wait_for_state(installation, client, "hungry")
    assert "OOMKilled" in output or "memory" in output, output
    assert "spark.driver.memory" in output, output


def run_and_stop(installation: Installation, client: Client, name: str) -> None:
    """Create a stopped application. It is already built, so a failure of its next start is one of its driver."""
    installation.submit(client, name, restart=NO_RESTARTS)
    installation.wait_for_epoch(client, name, 1)
    client.operations.wait(client.applications.stop(name), timeout_seconds=120)


def test_exhausted_quota_is_reported(installation: Installation, client: Client) -> None:
    run_and_stop(installation, client, "crowded")
    path = f"{installation.project.path}/resourcequotas"
    installation.cluster.create(path, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    try:
        client.applications.start("crowded")
        output = wait_for_state(installation, client, "crowded")
        with pytest.raises(EnvironmentProblem, match=r"quota of the namespace .* is exhausted for the builder's pod"):
            installation.submit(client, "more-crowded", spark=NEW_BUILDER)
    finally:
        installation.cluster.delete(f"{path}/none")
    assert "quota" in output, output
    assert "more-crowded" not in {application.name for application in client.applications.list()}


def test_missing_rights_of_the_control_plane_are_reported(installation: Installation, client: Client) -> None:
    cluster, namespace = installation.cluster, installation.project.namespace
    run_and_stop(installation, client, "closed")
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
    binding = cluster.get(f"{path}/{CONTROL}")
    installation.project.forbid(CONTROL)
    try:
        client.applications.start("closed")
        eventually(lambda: "may not" in " ".join(installation.show("closed").split()), 120)
        output = " ".join(installation.show("closed").split())
        with pytest.raises(EnvironmentProblem, match=f"may not start pods in the namespace '{namespace}'"):
            installation.submit(client, "more-closed", spark=NEW_BUILDER)
    finally:
        cluster.create(path, {key: binding[key] for key in ("roleRef", "subjects")} | {"metadata": {"name": CONTROL}})
    assert namespace in output, output
    assert "more-closed" not in {application.name for application in client.applications.list()}
