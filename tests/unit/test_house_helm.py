"""The chart: linted and rendered by Helm's own library, and every manifest checked against Kubernetes' schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed: no wheel for this platform")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

CHART = Path(__file__).parents[2] / "helm" / "epochal"
IMAGE = {"image": {"repository": "registry.example/epochal"}}
EVERYTHING = {
    **IMAGE,
    "database": {"existingSecret": "catalog", "key": "url"},
    "adminToken": {"existingSecret": "epochal-admin", "key": "token"},
    "store": "s3://bucket/epochal",
    "environment": [{"name": "SPARK_LOCAL_DIRS", "value": "/tmp/spark"}],
    "podAnnotations": {"example.com/team": "flights"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "batch", "operator": "Exists"}],
}


def render(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rendered manifests by kind."""
    with helm.Chart.load(str(CHART)) as chart:
        rendered = chart.render(values, name="epochal", namespace="streams")
    documents = [
        document
        for path, text in rendered.items()
        if path.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    ]
    return {document["kind"]: document for document in documents}


@pytest.mark.parametrize("values", [IMAGE, EVERYTHING], ids=["defaults", "everything"])
def test_every_manifest_fits_the_schemas_of_kubernetes(values: dict[str, Any]) -> None:
    manifests = render(values)
    assert set(manifests) == {"Deployment", "Service", "ServiceAccount", "PersistentVolumeClaim"}
    for manifest in manifests.values():
        for version in ("1.25", "1.31"):
            kubernetes_validate.validate(manifest, version, strict=True)


def test_lint_finds_nothing() -> None:
    findings = helm.lint(str(CHART), IMAGE)
    assert [message for message in findings["messages"] if message["severity"] not in ("INFO", 1)] == []


def test_an_image_is_required_and_the_message_says_how_to_get_one() -> None:
    with pytest.raises(helm.HelmError, match="build helm/Dockerfile"):
        render({})


def test_unknown_values_are_refused() -> None:
    with pytest.raises(helm.HelmError, match="replicaCount"):
        render({**IMAGE, "replicaCount": 3})


def test_the_pod_has_no_privileges() -> None:
    pod = render(EVERYTHING)["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"] + pod["initContainers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_the_service_leads_to_the_control_plane() -> None:
    manifests = render(IMAGE)
    pod = manifests["Deployment"]["spec"]["template"]
    selector = manifests["Service"]["spec"]["selector"]
    assert selector.items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert f"--port={ports['http']}" in container["args"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}


def test_secrets_are_referred_to_and_never_written_out() -> None:
    (container,) = render(EVERYTHING)["Deployment"]["spec"]["template"]["spec"]["containers"]
    environment = {variable["name"]: variable for variable in container["env"]}
    assert environment["EPOCHAL_DATABASE_URL"]["valueFrom"] == {"secretKeyRef": {"name": "catalog", "key": "url"}}
    assert "value" not in environment["EPOCHAL_DATABASE_URL"]
    assert "$(" not in str(container["args"]) and "database" not in str(container["args"])
