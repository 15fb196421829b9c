"""Values of the chart: the schema, messages for invalid values, and the documentation of each value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from epochal.cli.desired import read_desired
from tests.kit.charts import CHART, IMAGE, NAMESPACE, POSTGRESQL, helm, named, of_kind, render
from tests.service.end_to_end.blocks import blocks_of
from tools.chart_values import documented_values, table

ROOT = Path(__file__).parents[2]
PODS = {**POSTGRESQL, "kubernetes": {"enabled": True}}
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "image.repository is required: build helm/Dockerfile"),
        ({**IMAGE, "control": {"replicas": 2}}, "SQLite is for one control plane: name a PostgreSQL"),
        ({**IMAGE, "database": {"existingSecret": "catalog"}}, "store.url is required with PostgreSQL"),
        ({**IMAGE, "store": "s3://bucket/epochal"}, "got string, want object"),
        ({**IMAGE, "store": {"env": {"AZURE_STORAGE_SAS_KEY": "k"}}}, "AZURE_STORAGE_SAS_KEY is a secret"),
        ({**POSTGRESQL, "database": {"existingSecret": "a", "url": "postgresql://b/c"}}, "give one of them"),
        ({**IMAGE, "query": {"replicas": 1}}, "query.replicas needs PostgreSQL"),
        (
            {**POSTGRESQL, "query": {"autoscaling": {"enabled": True, "minReplicas": 4, "maxReplicas": 3}}},
            "minReplicas is above",
        ),
        ({**IMAGE, "kubernetes": {"enabled": True}}, "store.url is required with kubernetes.enabled"),
        ({**IMAGE, "ingress": {"enabled": True}}, "ingress.host is required"),
        ({**IMAGE, "ingress": {"enabled": True, "host": "a.example"}}, "ingress.tlsSecret is required"),
        (
            {**IMAGE, "ingress": {"enabled": True, "host": "a.example", "queryHost": "b.example", "tlsSecret": "t"}},
            "there are none: set query.replicas",
        ),
        ({**IMAGE, "metrics": {"serviceMonitor": {"enabled": True}}}, "epochal tokens create metrics"),
        (
            {**PODS, "kubernetes": {"enabled": True, "projects": [{"project": "default", "namespace": NAMESPACE}]}},
            "the control plane's own namespace",
        ),
        (
            {**PODS, "kubernetes": {"enabled": True, "projects": [{"project": "default", "namespace": "kube-system"}]}},
            "a namespace of the cluster itself",
        ),
        (
            {**PODS, "kubernetes": {"enabled": True, "projects": [{"project": "flights", "namespace": "flights"}]}},
            "has no project default",
        ),
        (
            {
                **PODS,
                "kubernetes": {
                    "enabled": True,
                    "projects": [{"project": "default", "namespace": "a"}, {"project": "flights", "namespace": "a"}],
                },
            },
            "share the namespace a",
        ),
        ({**POSTGRESQL, "internal": {"advertise": "pod", "tls": {"secret": "t"}}}, "Leave internal.advertise empty"),
        ({**POSTGRESQL, "internal": {"tls": {"authorityConfigMap": "a"}}}, "internal.tls.secret names no certificate"),
        ({**POSTGRESQL, "tls": {"authorityKey": "ca.crt"}}, "a key of tls.secret"),
        ({**POSTGRESQL, "oidc": {"settings": {"issuer": "https://a.example"}}}, "audience"),
        ({**POSTGRESQL, "oidc": {"settings": {"issuer": "http://a.example"}}}, "issuer"),
        ({**IMAGE, "replicaCount": 3}, "replicaCount"),
        ({**IMAGE, "control": {"replica": 3}}, "replica"),
        ({**IMAGE, "control": {"replicas": "three"}}, "control.replicas|/control/replicas"),
        ({**IMAGE, "service": {"port": 0}}, "port"),
        ({**IMAGE, "database": {"url": "mysql://somewhere"}}, "database"),
    ],
)
def test_invalid_values_are_refused_with_a_message(values: dict[str, Any], message: str) -> None:
    with pytest.raises(helm.HelmError, match=message):
        render(values)


def subschemas(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from subschemas(below, f"{path}.{name}".lstrip("."))
    if isinstance(schema.get("items"), dict):
        yield from subschemas(schema["items"], f"{path}[]")
    for number, below in enumerate(schema.get("anyOf", ())):
        yield from subschemas(below, f"{path}({number})")


def test_the_schema_refuses_unknown_values() -> None:
    """Except in objects that Kubernetes validates."""
    open_objects = {
        path
        for path, schema in [*subschemas(SCHEMA), *subschemas({"properties": SCHEMA["definitions"]}, "definitions")]
        if schema.get("type") == "object" and "additionalProperties" not in schema
    }
    assert open_objects == {"global", "definitions.named", "definitions.kubernetesObject"}


def test_the_schema_lists_exactly_the_documented_values() -> None:
    def paths(schema: Mapping[str, Any], above: str = "") -> Iterator[str]:
        for name, below in schema.get("properties", {}).items():
            path = f"{above}{name}"
            if "properties" in below and path not in FREEFORM:
                yield from paths(below, f"{path}.")
            elif below.get("type") == "array" and "properties" in below["items"]:
                yield from paths(below["items"], f"{path}[].")
            else:
                yield path

    assert {*paths(SCHEMA)} - {"global"} == {value.path for value in documented_values()}


FREEFORM = {"control.affinity", "query.affinity", "kubernetes.driver.template", "kubernetes.executor.template"}


def test_the_readme_table_lists_the_values() -> None:
    """``python -m tools.chart_values`` updates the table."""
    assert table() in (ROOT / "helm" / "README.md").read_text()


SELF_EXPLANATORY = {
    *("replicas", "port", "type", "annotations", "labels", "size", "namespace", "accessMode", "interval"),
    *("scrapeTimeout", "minReplicas", "maxReplicas", "maxUnavailable", "runAsUser", "runAsGroup", "fsGroup"),
    *("podLabels", "podAnnotations", "nodeSelector", "tolerations", "affinity", "pullPolicy", "resources"),
    *("className", "serviceAccount"),
}
"""Names defined by Kubernetes or explained by their section."""


def test_the_values_in_the_readme_are_accepted() -> None:
    values: dict[str, Any] = {}
    for block in blocks_of("helm/README.md", "yaml"):
        values |= yaml.safe_load(block.text)
    manifests = render(values)
    assert named(manifests, "Deployment", "epochal-query")["spec"]["replicas"] == 2
    assert (
        of_kind(manifests, "Ingress") and of_kind(manifests, "ServiceMonitor") and of_kind(manifests, "ResourceQuota")
    )


def test_the_production_page_shows_valid_values_and_a_valid_application(tmp_path: Path) -> None:
    values, application = (block.text for block in blocks_of("docs/start/in-production.md", "yaml"))
    manifests = render(yaml.safe_load(values))
    assert named(manifests, "Deployment", "epochal")["spec"]["replicas"] == 3
    file = tmp_path / "orders.yaml"
    file.write_text(application)
    (desired,) = read_desired([str(file)])
    assert desired.application.configuration.parallelism == 4


def test_every_value_is_described() -> None:
    described = {value.path for value in documented_values(sections=True) if value.comment}
    for value in documented_values():
        section, _, name = value.path.rpartition(".")
        by_its_section = name in SELF_EXPLANATORY or (name == "enabled" and section in described)
        assert value.comment or by_its_section, value.path
