"""Refused values, the resources that remain after removal, and the chart with its default values."""

from __future__ import annotations

from typing import Any

import helm_python as helm
import pytest

from tests.kubernetes.installed.applications import Scripted
from tests.kubernetes.installed.installation import (
    APPLICATIONS,
    CHART,
    NAMESPACE,
    PATIENCE_SECONDS,
    STORE_SECRET,
    Installation,
)

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1800)]

BESIDE_THE_RELEASE = {"enabled": True, "projects": [{"project": "default", "namespace": "bad"}]}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "several replicas on SQLite": ({"control": {"replicas": 2}}, "SQLite is for one control plane"),
    "no store": ({"database": {"existingSecret": "epochal-database"}}, "store.url is required with PostgreSQL"),
    "its own namespace": (
        {
            "store": {"url": "s3://b/e"},
            "kubernetes": {"enabled": True, "projects": [{"project": "default", "namespace": "bad"}]},
        },
        "the control plane's own namespace",
    ),
    "unknown value": ({"control": {"replica": 3}}, "additional properties 'replica' not allowed"),
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
IN_EVERY_NAMESPACE = {("configmaps", "kube-root-ca.crt"), ("serviceaccounts", "default")}


@pytest.mark.parametrize("case", REFUSED)
def test_contradictory_values_are_refused_before_installation(installed: Installation, case: str) -> None:
    values, sentence = REFUSED[case]
    with pytest.raises(helm.HelmError, match=sentence):
        installed.helm.install(CHART, "bad", {"image": {"repository": "any"}, **values}, namespace="bad")
    assert "bad" not in installed.namespaces()


def test_removed_trial_release_keeps_its_volume(installed: Installation) -> None:
    """A release with one control plane on SQLite. After removal only its volume claim remains."""
    cluster = installed.cluster
    cluster.make_namespace("trial")
    control = {name: installed.local_values()["control"][name] for name in ("extraEnv", "extraArgs", "resources")}
    values = {"image": installed.local_values()["image"], "control": {**control, "warmDrivers": 0}}
    with helm.Config(kubeconfig_path=cluster.kubeconfig(), namespace="trial") as trial:
        trial.install(CHART, "epochal", values, namespace="trial", wait="watcher", timeout=PATIENCE_SECONDS)
        trial.test("epochal", timeout=PATIENCE_SECONDS)
        trial.uninstall("epochal", wait="watcher", timeout=PATIENCE_SECONDS)
    expected = IN_EVERY_NAMESPACE | {("persistentvolumeclaims", "epochal")}
    installed.eventually(lambda: _remaining(installed, "trial") == expected)


def test_removed_release_continues_after_reinstallation(installed: Installation) -> None:
    """Helm leaves the secrets and the claim that it did not create, and deletes project namespaces with their drivers.

    After reinstallation on the same catalog and store, the application continues where it was.
    """
    with installed.client() as client:
        application = Scripted(installed, client, "kept")
        application.submit()
        application.wait_for_epoch(2)
    installed.uninstall()
    given = {("secrets", "epochal-database"), ("secrets", STORE_SECRET), ("persistentvolumeclaims", "shared")}
    expected = IN_EVERY_NAMESPACE | given
    installed.eventually(lambda: _remaining(installed, NAMESPACE) == expected)
    installed.eventually(lambda: APPLICATIONS not in installed.namespaces())
    committed = application.journal.committed

    installed.install(installed.values)
    installed.wait_until_ready()
    with installed.client() as client:
        application = Scripted(installed, client, "kept")
        application.wait_for_epoch(max(committed) + 2)
        client.operations.wait(client.applications.stop("kept"), timeout_seconds=120)
    assert application.journal.committed == set(range(1, max(application.journal.committed) + 1)) >= committed


def _remaining(installed: Installation, namespace: str) -> set[tuple[str, str]]:
    """Return kind and name of all resources in the namespace."""
    return {
        (kind, item["metadata"]["name"])
        for group, kinds in KINDS.items()
        for kind in kinds
        for item in installed.cluster.get(f"{group}/namespaces/{namespace}/{kind}")["items"]
    }
