"""What goes wrong with pods, as `epochal show` tells it: the state, the cause, and what to do."""

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

ONCE = {"max_restarts": 0}
OWN_BUILDER = {"spark.kubernetes.driverEnv.OWN": "yes"}
"""What is built with it is not built in a pod that was there before."""
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
"""The pod's own token, as the node would leave it there if it did not renew it."""

DRIVER, BUILDER = "epochal.driver", "epochal.service.runtime.builder.pod"


class Prepared(Protocol):
    def __call__(self, name: str, script: str, module: str = DRIVER) -> dict[str, str]: ...


@pytest.fixture
def prepared(installation: Installation, tmp_path: Path) -> Prepared:
    """Spark's options for an image whose ``python`` does something before it is Python, where it is to run a module."""

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
        installation.kubelet.images[f"nobody/{name}:1"] = Image(environment=environment, places=places)
        return {"spark.kubernetes.container.image": f"nobody/{name}:1"}

    return make


def shown(installation: Installation, client: Client, name: str, state: str = "failed") -> str:
    """In one line, once the application is in that state."""
    eventually(lambda: client.applications.get(name).state == state, 180)
    return " ".join(installation.show(name).split())


def test_a_token_that_has_expired(installation: Installation, client: Client, prepared: Prepared) -> None:
    spark = prepared("expired", "{python} {folder}/expired.py && export {variable}=/tmp/token")
    installation.submit(client, "late", spark=spark, restart=ONCE)
    told = shown(installation, client, "late")
    assert "there are no orders: The token has expired" in told, told


def test_a_token_of_somebody_else(installation: Installation, client: Client, prepared: Prepared) -> None:
    project = installation.project
    foreign = installation.cluster.account_token(project.namespace, EXECUTOR, ["epochal"])
    spark = prepared("foreign", f"echo {foreign} > /tmp/token; export {{variable}}=/tmp/token")
    installation.submit(client, "foreign", spark=spark, restart=ONCE)
    told = shown(installation, client, "foreign")
    assert "there are no orders: The token was not issued by a cluster for a pod" in told, told
    assert foreign not in told + installation.plane.run("logs", "foreign").stdout


def test_a_builder_whose_token_has_expired(installation: Installation, client: Client, prepared: Prepared) -> None:
    spark = prepared("unbuilt", "{python} {folder}/expired.py && export {variable}=/tmp/token", BUILDER)
    with pytest.raises(EnvironmentProblem, match=r"was to build the pipeline has ended. .* The token has expired"):
        installation.submit(client, "unbuilt", spark=spark)


def test_a_store_that_the_driver_may_not_write(installation: Installation, client: Client, prepared: Prepared) -> None:
    store = installation.shared / "plane" / "home" / "store"
    spark = prepared("readonly", f"mount -o remount,bind,ro {store}")
    installation.submit(client, "readonly", spark=spark, restart=ONCE, tolerable_failed_epochs=0)
    told = shown(installation, client, "readonly")
    assert "cannot be written" in told and "Drivers and the control plane require" in told, told


def test_a_driver_that_is_killed_for_its_memory(installation: Installation, client: Client) -> None:
    installation.submit(client, "hungry", restart=ONCE)
    installation.reaches(client, "hungry", 1)
    pod = installation.kubelet.pod(installation.project.namespace, installation.pod_of(client, "hungry"))
    assert pod is not None
    pod.kill_for_memory("driver")
    told = shown(installation, client, "hungry")
    assert "OOMKilled" in told or "memory" in told, told
    assert "spark.driver.memory" in told, told


def stopped(installation: Installation, client: Client, name: str) -> None:
    """An application that is described already: what goes wrong at its next start goes wrong with its driver."""
    installation.submit(client, name, restart=ONCE)
    installation.reaches(client, name, 1)
    client.operations.wait(client.applications.stop(name), timeout_seconds=120)


def test_a_quota_that_is_used_up(installation: Installation, client: Client) -> None:
    stopped(installation, client, "crowded")
    path = f"{installation.project.path}/resourcequotas"
    installation.cluster.create(path, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    try:
        client.applications.start("crowded")
        told = shown(installation, client, "crowded")
        with pytest.raises(EnvironmentProblem, match=r"quota of the namespace .* no room for the builder's pod"):
            installation.submit(client, "more-crowded", spark=OWN_BUILDER)
    finally:
        installation.cluster.delete(f"{path}/none")
    assert "quota" in told, told
    assert "more-crowded" not in {application.name for application in client.applications.list()}


def test_a_namespace_where_the_control_plane_may_do_nothing(installation: Installation, client: Client) -> None:
    cluster, namespace = installation.cluster, installation.project.namespace
    stopped(installation, client, "closed")
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
    binding = cluster.get(f"{path}/{CONTROL}")
    installation.project.forbid(CONTROL)
    try:
        client.applications.start("closed")
        eventually(lambda: "may not" in " ".join(installation.show("closed").split()), 120)
        told = " ".join(installation.show("closed").split())
        with pytest.raises(EnvironmentProblem, match=f"may not start pods in the namespace '{namespace}'"):
            installation.submit(client, "more-closed", spark=OWN_BUILDER)
    finally:
        cluster.create(path, {key: binding[key] for key in ("roleRef", "subjects")} | {"metadata": {"name": CONTROL}})
    assert namespace in told, told
    assert "more-closed" not in {application.name for application in client.applications.list()}
