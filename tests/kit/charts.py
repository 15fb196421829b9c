"""The chart rendered by Helm's own library, and queries on its manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed: no wheel for this platform")

CHART = Path(__file__).parents[2] / "helm" / "epochal"
NAMESPACE = "streams"
RELEASE = "epochal"
VALUES = {path.name.removesuffix("-values.yaml"): path for path in sorted((CHART / "ci").glob("*-values.yaml"))}
IMAGE = {"image": {"repository": "registry.example/epochal"}}
POSTGRESQL = {**IMAGE, "database": {"existingSecret": "catalog"}, "store": {"url": "s3://bucket/epochal"}}
every_file = pytest.mark.parametrize("name", VALUES)
"""Runs a test with each values file of the chart's ci folder."""

Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class Pod:
    """A pod that a manifest describes. ``owner``: kind and name."""

    owner: str
    namespace: str
    labels: Mapping[str, str]
    spec: Manifest

    @property
    def containers(self) -> Sequence[Manifest]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for each in self.containers for port in each.get("ports", ())}

    @property
    def arguments(self) -> Sequence[str]:
        (container,) = self.spec["containers"]
        return list(container["args"])

    @property
    def environment(self) -> dict[str, Manifest]:
        (container,) = self.spec["containers"]
        return {variable["name"]: variable for variable in container.get("env", ())}


@cache
def values_of(name: str) -> dict[str, Any]:
    """Return the values of one of the chart's ci files."""
    document = yaml.safe_load(VALUES[name].read_text())
    assert isinstance(document, dict)
    return document


@cache
def rendered(name: str) -> tuple[Manifest, ...]:
    """Return the manifests for one of the chart's ci files, including hooks."""
    return render(values_of(name))


def render(values: Mapping[str, Any]) -> tuple[Manifest, ...]:
    """Render the chart. Raises ``helm.HelmError`` if it refuses the values."""
    with helm.Chart.load(str(CHART)) as chart:
        texts = chart.render(dict(values), name=RELEASE, namespace=NAMESPACE)
    documents = (
        document
        for path, text in sorted(texts.items())
        if path.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    )
    return tuple(documents)


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def named(manifests: Sequence[Manifest], kind: str, name: str) -> Manifest:
    (found,) = [each for each in of_kind(manifests, kind) if each["metadata"]["name"] == name]
    return found


def namespace_of(manifest: Manifest) -> str:
    return str(manifest["metadata"].get("namespace", NAMESPACE))


def pods(manifests: Sequence[Manifest]) -> Iterator[Pod]:
    """Yield the pods that the chart describes; drivers and executors are not among them."""
    for manifest in manifests:
        owner = f"{manifest['kind']} {manifest['metadata']['name']}"
        if manifest["kind"] == "Pod":
            yield Pod(owner, namespace_of(manifest), manifest["metadata"]["labels"], manifest["spec"])
        elif "template" in manifest.get("spec", {}):
            template = manifest["spec"]["template"]
            yield Pod(owner, namespace_of(manifest), template["metadata"]["labels"], template["spec"])


def pod(manifests: Sequence[Manifest], component: str) -> Pod:
    (found,) = [each for each in pods(manifests) if each.labels["app.kubernetes.io/component"] == component]
    return found


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return selector.items() <= labels.items()


ALLOWED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def unrestricted(spec: Manifest) -> Iterator[str]:
    """Yield the violations of Pod Security level ``restricted`` in a pod, each as a phrase."""
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC", "hostUsers") if spec.get(name))
    for volume in spec.get("volumes", ()):
        yield from (f"volume {kind}" for kind in set(volume) - {"name"} - ALLOWED_VOLUMES)
    of_pod = spec.get("securityContext") or {}
    if of_pod.get("sysctls"):
        yield "sysctls"
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        own = container.get("securityContext") or {}
        context = {**of_pod, **own}
        name = container["name"]
        if own.get("privileged"):
            yield f"{name}: privileged"
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{name}: allowPrivilegeEscalation"
        if context.get("runAsNonRoot") is not True:
            yield f"{name}: runAsNonRoot"
        if context.get("runAsUser") == 0:
            yield f"{name}: runAsUser 0"
        if (context.get("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{name}: seccompProfile"
        capabilities = own.get("capabilities") or {}
        if "ALL" not in capabilities.get("drop", ()):
            yield f"{name}: capabilities.drop"
        if set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
            yield f"{name}: capabilities.add"
        if own.get("procMount", "Default") != "Default":
            yield f"{name}: procMount"
        if any(port.get("hostPort") for port in container.get("ports", ())):
            yield f"{name}: hostPort"
