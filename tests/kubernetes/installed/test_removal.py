"""What is refused before anything is made, what a removed release leaves, and the chart as it is tried first."""

from __future__ import annotations

from typing import Any

import helm_python as helm
import pytest

from tests.kubernetes.installed.applications import Scripted
from tests.kubernetes.installed.installation import APPLICATIONS, CHART, NAMESPACE, PATIENCE_SECONDS, Installation

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1800)]

BESIDE_THE_RELEASE = {"enabled": True, "projects": [{"project": "default", "namespace": "bad"}]}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "several on SQLite": ({"control": {"replicas": 2}}, "SQLite is for one control plane"),
    "no store": ({"database": {"existingSecret": "epochal-database"}}, "store is required with PostgreSQL"),
    "its own namespace": (
        {
            "store": "s3://b/e",
            "kubernetes": {"enabled": True, "projects": [{"project": "default", "namespace": "bad"}]},
        },
        "the control plane's own namespace",
    ),
    "a value that there is not": ({"control": {"replica": 3}}, "additional properties 'replica' not allowed"),
}
KINDS = {
    "/api/v1": ["configmaps", "endpoints", "persistentvolumeclaims", "pods", "secrets", "serviceaccounts", "services"],
    "/apis/apps/v1": ["deployments", "replicasets"],
    "/apis/batch/v1": ["jobs"],
    "/apis/discovery.k8s.io/v1": ["endpointslices"],
    "/apis/networking.k8s.io/v1": ["networkpolicies"],
    "/apis/policy/v1": ["poddisruptionbudgets"],
    "/apis/rbac.authorization.k8s.io/v1": ["roles", "rolebindings"],
}
OF_EVERY_NAMESPACE = {("configmaps", "kube-root-ca.crt"), ("serviceaccounts", "default")}


@pytest.mark.parametrize("what", REFUSED)
def test_values_that_contradict_each_other_make_nothing(installed: Installation, what: str) -> None:
    values, sentence = REFUSED[what]
    with pytest.raises(helm.HelmError, match=sentence):
        installed.helm.install(CHART, "bad", {"image": {"repository": "any"}, **values}, namespace="bad")
    assert "bad" not in installed.namespaces()


def test_what_is_tried_first_keeps_its_volume(installed: Installation) -> None:
    """One control plane on SQLite; removed, it leaves its volume and nothing else."""
    cluster = installed.cluster
    cluster.make_namespace("trial")
    control = {name: installed.local_values()["control"][name] for name in ("extraEnv", "extraArgs", "resources")}
    values = {"image": installed.local_values()["image"], "control": {**control, "warmDrivers": 0}}
    with helm.Config(kubeconfig_path=cluster.kubeconfig(), namespace="trial") as there:
        there.install(CHART, "epochal", values, namespace="trial", wait="watcher", timeout=PATIENCE_SECONDS)
        there.test("epochal", timeout=PATIENCE_SECONDS)
        there.uninstall("epochal", wait="watcher", timeout=PATIENCE_SECONDS)
    expected = OF_EVERY_NAMESPACE | {("persistentvolumeclaims", "epochal")}
    installed.eventually(lambda: _left(installed, "trial") == expected)


def test_removed_it_leaves_what_it_has_not_made_and_goes_on_when_it_is_back(installed: Installation) -> None:
    """The secret with the catalog's URL and the claim are their maker's; namespaces of projects go with all that is
    in them, drivers too. Installed again on the same catalog and store, the application goes on where it was."""
    with installed.client() as client:
        application = Scripted(installed, client, "kept")
        application.submit()
        application.reaches(2)
    installed.uninstall()
    expected = OF_EVERY_NAMESPACE | {("secrets", "epochal-database"), ("persistentvolumeclaims", "shared")}
    installed.eventually(lambda: _left(installed, NAMESPACE) == expected)
    installed.eventually(lambda: APPLICATIONS not in installed.namespaces())
    committed = application.journal.committed

    installed.install(installed.values)
    installed.wait_until_ready()
    with installed.client() as client:
        application = Scripted(installed, client, "kept")
        application.reaches(max(committed) + 2)
        client.operations.wait(client.applications.stop("kept"), timeout_seconds=120)
    assert application.journal.committed == set(range(1, max(application.journal.committed) + 1)) >= committed


def _left(installed: Installation, namespace: str) -> set[tuple[str, str]]:
    """Kinds and names of all there is."""
    return {
        (kind, item["metadata"]["name"])
        for group, kinds in KINDS.items()
        for kind in kinds
        for item in installed.cluster.get(f"{group}/namespaces/{namespace}/{kind}")["items"]
    }
