"""The small kubelet of the tests: environment variables, references and service names from manifests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.kit.kubernetes.environment import MissingObject, Place, expanded, field, quantity, variables_of
from tests.kit.kubernetes.names import host_lines

PLACE = Place("node-1", "127.0.0.1", "127.0.1.5")
POD = {
    "metadata": {"name": "a-1", "namespace": "team", "uid": "u", "labels": {"tier": "x", "app": 'say "hi"'}},
    "spec": {"serviceAccountName": "driver", "containers": []},
}
HELD = {("configmaps", "site"): {"URL": "http://x", "LEVEL": "info"}, ("secrets", "keys"): {"password": "p$(URL)"}}


def data(kind: str, name: str, optional: bool) -> Mapping[str, str] | None:
    if (kind, name) not in HELD and not optional:
        raise MissingObject(name)
    return HELD.get((kind, name))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$(A)", "1"),
        ("$(A)$(B)", "1two"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
    ],
)
def test_references_are_expanded_as_in_kubernetes(text: str, value: str) -> None:
    assert expanded(text, {"A": "1", "B": "two"}) == value


def test_variables_of_a_container_are_resolved() -> None:
    container: dict[str, Any] = {
        "envFrom": [
            {"prefix": "SITE_", "configMapRef": {"name": "site"}},
            {"secretRef": {"name": "no", "optional": True}},
        ],
        "env": [
            {"name": "A", "value": "$(SITE_URL)/a"},
            {"name": "SITE_LEVEL", "value": "debug"},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "password"}}},
            {"name": "NO", "valueFrom": {"configMapKeyRef": {"name": "site", "key": "x", "optional": True}}},
            {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
            {"name": "EMPTY"},
        ],
        "resources": {"limits": {"memory": "1.5Gi"}},
    }
    assert variables_of(POD, container, PLACE, data) == {
        "SITE_URL": "http://x",
        "SITE_LEVEL": "debug",
        "A": "http://x/a",
        "IP": "127.0.1.5",
        "PASSWORD": "p$(URL)",
        "MEMORY": "1536",
        "EMPTY": "",
    }


def test_a_missing_reference_is_reported() -> None:
    reference = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "user"}}}
    with pytest.raises(MissingObject, match="user"):
        variables_of(POD, {"env": [reference]}, PLACE, data)


def test_labels_are_formatted_as_lines_of_a_file() -> None:
    assert field(POD, PLACE, "metadata.labels") == 'app="say \\"hi\\""\ntier="x"\n'
    assert field(POD, PLACE, "metadata.labels['tier']") == "x"
    assert field(POD, PLACE, "spec.serviceAccountName") == "driver"


@pytest.mark.parametrize(("text", "number"), [("500m", "0.5"), ("2", "2"), ("1Gi", "1073741824"), ("1.5k", "1500")])
def test_quantities_are_parsed(text: str, number: str) -> None:
    assert quantity(text) == type(quantity("1"))(number)


def test_service_names_resolve_to_the_addresses_of_their_pods() -> None:
    def pod(name: str, address: str, ready: bool, **spec: str) -> dict[str, Any]:
        condition = {"type": "Ready", "status": str(ready)}
        status = {"phase": "Running", "podIP": address, "conditions": [condition]}
        metadata = {"name": name, "namespace": "team", "labels": {"app": "x"}}
        return {"metadata": metadata, "spec": spec, "status": status}

    pods = [
        pod("a", "127.0.1.2", False, hostname="a", subdomain="all"),
        pod("b", "127.0.1.3", True, hostname="b", subdomain="all"),
    ]
    services = [
        {
            "metadata": {"name": "all", "namespace": "team"},
            "spec": {"clusterIP": "None", "selector": {"app": "x"}, "publishNotReadyAddresses": True},
        },
        {
            "metadata": {"name": "ready", "namespace": "team"},
            "spec": {"clusterIP": "10.0.0.1", "selector": {"app": "x"}},
        },
        {
            "metadata": {"name": "ready", "namespace": "other"},
            "spec": {"clusterIP": "10.0.0.2", "selector": {"app": "x"}},
        },
    ]
    lines = host_lines(POD, "127.0.1.5", services, pods).splitlines()
    by_name = {name: line.split()[0] for line in lines for name in line.split()[1:]}
    assert by_name["a-1"] == "127.0.1.5"
    assert by_name["a.all.team.svc"] == by_name["a.all"] == "127.0.1.2"
    assert by_name["ready"] == by_name["ready.team.svc.cluster.local"] == "127.0.1.3"
    assert "ready.other" not in by_name
