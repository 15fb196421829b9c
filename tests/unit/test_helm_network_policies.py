"""Network policies of the chart: permitted callers of each pod, and outside addresses that pods may call."""

from __future__ import annotations

import ipaddress

import pytest

from epochal.addresses import METADATA
from tests.kit.charts import (
    NAMESPACE,
    Manifest,
    every_file,
    named,
    namespace_of,
    of_kind,
    pods,
    render,
    rendered,
    selects,
    values_of,
)


@every_file
def test_network_policies_name_existing_pods_and_ports(name: str) -> None:
    manifests = rendered(name)
    every_pod = list(pods(manifests))
    policies = of_kind(manifests, "NetworkPolicy")
    for policy in policies:
        if namespace_of(policy) != NAMESPACE:
            continue
        selector = policy["spec"]["podSelector"]["matchLabels"]
        chosen = [each for each in every_pod if selects(selector, each.labels)]
        assert len(chosen) == 1, policy["metadata"]["name"]
        for rule in policy["spec"]["ingress"]:
            assert all(port["port"] in chosen[0].ports for port in rule["ports"])
    if not values_of(name).get("networkPolicy", {}).get("enabled", True):
        assert policies == []
        return
    for each in every_pod:
        covering = [policy for policy in policies if selects(policy["spec"]["podSelector"]["matchLabels"], each.labels)]
        assert covering, f"no policy protects {each.owner}"


def test_only_drivers_and_builders_of_projects_reach_the_internal_port() -> None:
    policy = named(rendered("projects"), "NetworkPolicy", "epochal-control")
    (internal,) = [rule for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] == "internal"]
    assert [each["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for each in internal["from"]] == [
        "epochal-default",
        "epochal-flights",
        "orders-streams",
    ]
    components = {"key": "app.kubernetes.io/component", "operator": "In", "values": ["driver", "builder"]}
    selected = {"matchLabels": {"app.kubernetes.io/managed-by": "epochal"}, "matchExpressions": [components]}
    assert all(each["podSelector"] == selected for each in internal["from"])
    local = named(rendered("postgresql"), "NetworkPolicy", "epochal-control")
    assert [rule["ports"][0]["port"] for rule in local["spec"]["ingress"]] == ["http"]


DRIVERS = {"app.kubernetes.io/managed-by": "epochal", "app.kubernetes.io/component": "driver"}
EXECUTORS = {"app.kubernetes.io/managed-by": "epochal", "spark-role": "executor"}


def test_drivers_and_executors_accept_only_each_other() -> None:
    policies = of_kind(rendered("kubernetes"), "NetworkPolicy")
    driver, executor = (
        next(each for each in policies if each["spec"]["podSelector"]["matchLabels"] == labels)
        for labels in (DRIVERS, EXECUTORS)
    )
    (to_driver,), (to_executor,) = driver["spec"]["ingress"], executor["spec"]["ingress"]
    assert [each["podSelector"]["matchLabels"] for each in to_driver["from"]] == [EXECUTORS]
    assert [port["port"] for port in to_driver["ports"]] == [7078, 7079]
    assert [each["podSelector"]["matchLabels"] for each in to_executor["from"]] == [EXECUTORS, DRIVERS]
    builder = next(each for each in policies if each["metadata"]["name"] == "epochal-builder")
    assert builder["spec"]["ingress"] == []


def permits(spec: Manifest, address: str, port: int) -> bool:
    """Returns whether the policy lets its pods call an address outside the cluster."""
    called = ipaddress.ip_address(address)

    def names(block: Manifest) -> bool:
        within = [ipaddress.ip_network(each) for each in (block["cidr"], *block.get("except", ()))]
        return called in within[0] and not any(called in each for each in within[1:])

    return "Egress" not in spec["policyTypes"] or any(
        (not rule.get("ports") or port in {each["port"] for each in rule["ports"]})
        and (not rule.get("to") or any("ipBlock" in each and names(each["ipBlock"]) for each in rule["to"]))
        for rule in spec["egress"]
    )


@pytest.mark.parametrize("name", ["kubernetes", "projects", "postgresql", "everything", "query-nodes"])
def test_pods_cannot_call_metadata_services_by_default(name: str) -> None:
    metadata = [
        *map(str, METADATA),
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "fe80::a9fe:a9fe",
        "fd20:ce::254",
    ]
    policies = of_kind(rendered(name), "NetworkPolicy")
    assert policies
    for policy in policies:
        assert [each for each in metadata if permits(policy["spec"], each, 80)] == [], policy["metadata"]["name"]
        restricted = values_of(name).get("networkPolicy", {}).get("egress", {}).get("restricted", False)
        if not restricted:  # other addresses are allowed
            assert all(permits(policy["spec"], each, 5432) for each in ("10.1.2.3", "203.0.113.7", "2001:db8::1"))
        assert permits(policy["spec"], "169.254.20.10", 53)  # the cache of the cluster's DNS on each node


def test_a_metadata_service_can_be_allowed() -> None:
    values = values_of("kubernetes")
    rule = {"to": [{"ipBlock": {"cidr": "169.254.170.23/32"}}], "ports": [{"protocol": "TCP", "port": 80}]}
    for policy in of_kind(render({**values, "networkPolicy": {"egress": {"rules": [rule]}}}), "NetworkPolicy"):
        assert permits(policy["spec"], "169.254.170.23", 80)
        assert not permits(policy["spec"], "169.254.169.254", 80)
    for policy in of_kind(render({**values, "networkPolicy": {"egress": {"closedCidrs": []}}}), "NetworkPolicy"):
        assert policy["spec"]["policyTypes"] == ["Ingress"]
    for family, closed in (("0.0.0.0/0", ["::1/128"]), ("::/0", ["10.0.0.0/8"])):
        manifests = render({**values, "networkPolicy": {"egress": {"closedCidrs": closed}}})
        (rule,) = [rule for rule in of_kind(manifests, "NetworkPolicy")[0]["spec"]["egress"] if "to" in rule]
        (block,) = [each["ipBlock"] for each in rule["to"] if each.get("ipBlock", {}).get("cidr") == family]
        assert "except" not in block


def test_restricted_egress_allows_the_required_calls() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(rendered("closed-network"), "NetworkPolicy")}
    database = {"protocol": "TCP", "port": 5432}
    for name, spec in policies.items():
        assert spec["policyTypes"] == ["Ingress", "Egress"], name
        called = [port for rule in spec["egress"] for port in rule.get("ports", ())]
        assert {"protocol": "UDP", "port": 53} in called and database in called, name
        calls_the_cluster = any("10.0.0.1/32" in str(rule) for rule in spec["egress"])
        assert calls_the_cluster is (name in ("epochal-control", "epochal-driver")), name
