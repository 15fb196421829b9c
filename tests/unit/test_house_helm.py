"""The chart: linted and rendered by Helm's own library with each of its ci files; every manifest is checked against
Kubernetes' schemas, and against what the chart promises."""

from __future__ import annotations

import base64
import ipaddress
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from epochal.addresses import METADATA
from epochal.cli.desired import read_desired
from epochal.cli.main import app
from epochal.service.domain.identity import read_oidc_settings
from epochal.service.domain.kubernetes.pod_settings import KubernetesSettings
from epochal.wire.tokens import Role
from tests.kit.charts import (
    CHART,
    NAMESPACE,
    VALUES,
    Manifest,
    helm,
    named,
    namespace_of,
    of_kind,
    pod,
    pods,
    render,
    rendered,
    selects,
    unrestricted,
    values_of,
)
from tests.service.end_to_end.blocks import blocks_of
from tools.chart_values import documented_values, table

kubernetes_validate = pytest.importorskip("kubernetes_validate")

ROOT = Path(__file__).parents[2]
IMAGE = {"image": {"repository": "registry.example/epochal"}}
POSTGRESQL = {**IMAGE, "database": {"existingSecret": "catalog"}, "store": "s3://bucket/epochal"}
PODS = {**POSTGRESQL, "kubernetes": {"enabled": True}}
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
OF_THE_PROMETHEUS_OPERATOR = {"ServiceMonitor", "PrometheusRule"}
every_file = pytest.mark.parametrize("name", VALUES)


@every_file
def test_every_manifest_fits_the_schemas_of_kubernetes(name: str) -> None:
    manifests = rendered(name)
    for manifest in manifests:
        if manifest["kind"] in OF_THE_PROMETHEUS_OPERATOR:
            continue
        for version in ("1.25", "1.36"):
            kubernetes_validate.validate(manifest, version, strict=True)
    identities = [(each["kind"], namespace_of(each), each["metadata"]["name"]) for each in manifests]
    assert len(set(identities)) == len(identities)


@every_file
def test_lint_finds_nothing(name: str) -> None:
    findings = helm.lint(str(CHART), values_of(name))
    assert [message for message in findings["messages"] if message["severity"] not in ("INFO", 1)] == []


@every_file
def test_every_pod_is_admitted_by_pod_security_restricted(name: str) -> None:
    for each in pods(rendered(name)):
        assert list(unrestricted(each.spec)) == [], each.owner
        for container in each.containers:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, each.owner
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), each.owner
            assert "memory" in container["resources"]["limits"], each.owner
        assert each.spec["automountServiceAccountToken"] is (
            each.owner.startswith("Deployment")
            and each.labels["app.kubernetes.io/component"] == "control"
            and values_of(name).get("kubernetes", {}).get("enabled", False)
        )


@every_file
def test_selectors_and_ports_meet(name: str) -> None:
    manifests = rendered(name)
    there = list(pods(manifests))
    for manifest in manifests:
        if manifest["kind"] == "Service":
            chosen = [each for each in there if selects(manifest["spec"]["selector"], each.labels)]
            assert chosen, manifest["metadata"]["name"]
            for port in manifest["spec"]["ports"]:
                assert all(port["targetPort"] in each.ports for each in chosen)
        elif manifest["kind"] in ("Deployment", "PodDisruptionBudget"):
            selector = manifest["spec"]["selector"]["matchLabels"]
            chosen = [each for each in there if selects(selector, each.labels)]
            assert [each.owner.partition(" ")[0] for each in chosen] == ["Deployment"]
        elif manifest["kind"] == "HorizontalPodAutoscaler":
            target = named(manifests, "Deployment", manifest["spec"]["scaleTargetRef"]["name"])
            assert "replicas" not in target["spec"]
        elif manifest["kind"] == "ServiceMonitor":
            (service,) = [
                each
                for each in of_kind(manifests, "Service")
                if selects(manifest["spec"]["selector"]["matchLabels"], each["metadata"]["labels"])
            ]
            assert service["spec"]["clusterIP"] == "None"
            assert {each["port"] for each in manifest["spec"]["endpoints"]} <= {
                port["name"] for port in service["spec"]["ports"]
            }
        elif manifest["kind"] == "Ingress":
            for rule in manifest["spec"]["rules"]:
                for path in rule["http"]["paths"]:
                    service = named(manifests, "Service", path["backend"]["service"]["name"])
                    assert path["backend"]["service"]["port"]["name"] in {
                        port["name"] for port in service["spec"]["ports"]
                    }


@every_file
def test_network_policies_name_pods_and_ports_that_there_are(name: str) -> None:
    manifests = rendered(name)
    there = list(pods(manifests))
    policies = of_kind(manifests, "NetworkPolicy")
    for policy in policies:
        if namespace_of(policy) != NAMESPACE:
            continue
        selector = policy["spec"]["podSelector"]["matchLabels"]
        chosen = [each for each in there if selects(selector, each.labels)]
        assert len(chosen) == 1, policy["metadata"]["name"]
        for rule in policy["spec"]["ingress"]:
            assert all(port["port"] in chosen[0].ports for port in rule["ports"])
    if not values_of(name).get("networkPolicy", {}).get("enabled", True):
        assert policies == []
        return
    for each in there:
        covering = [policy for policy in policies if selects(policy["spec"]["podSelector"]["matchLabels"], each.labels)]
        assert covering, f"nothing keeps others from {each.owner}"


@every_file
def test_arguments_are_options_that_the_command_has(name: str) -> None:
    command = get_command(app)
    for each in pods(rendered(name)):
        verb, *arguments = each.arguments
        known = {option for parameter in command.commands[verb].params for option in parameter.opts}  # type: ignore[attr-defined]
        used = {argument.partition("=")[0] for argument in arguments}
        assert used <= known, each.owner
        assert "$(" not in str(arguments), "references to variables would stand in the list of processes"


def test_variables_are_those_of_the_documentation() -> None:
    names = ("operations/running", "operations/kubernetes", "reference/settings")
    page = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in names)
    found = {name for file in VALUES for each in pods(rendered(file)) for name in each.environment}
    assert {name for name in found if name.startswith("EPOCHAL_") and f"`{name}`" not in page} == set()


@every_file
def test_secrets_are_referred_to_and_never_written_out(name: str) -> None:
    manifests = rendered(name)
    hidden = ["not-to-be-seen", base64.b64encode(b"not-to-be-seen").decode()]
    for secret in of_kind(manifests, "Secret"):
        for value in secret["data"].values():
            hidden += [value, base64.b64decode(value).decode()]
    shown = json.dumps([each for each in manifests if each["kind"] != "Secret"])
    assert [value for value in hidden if value in shown] == []
    for each in pods(manifests):
        for variable in ("EPOCHAL_DATABASE_URL", "EPOCHAL_TOKEN"):
            if variable in each.environment:
                assert "value" not in each.environment[variable]


def test_the_chart_makes_a_token_of_the_form_that_is_asked_for() -> None:
    from epochal.service.domain.secrets import UserToken

    first, second = (named(render(IMAGE), "Secret", "epochal-admin")["data"]["token"] for _ in range(2))
    assert first != second
    assert UserToken.parse(base64.b64decode(first).decode()) is not None


@every_file
def test_rights_are_few_and_in_the_namespaces_of_projects(name: str) -> None:
    manifests = rendered(name)
    assert not of_kind(manifests, "ClusterRole") and not of_kind(manifests, "ClusterRoleBinding")
    for role in of_kind(manifests, "Role"):
        assert namespace_of(role) != NAMESPACE
        for rule in role["rules"]:
            assert set(rule["resources"]) <= {"pods", "pods/log", "events"}
            assert "*" not in rule["verbs"] and rule["apiGroups"] == [""]
    accounts = {(namespace_of(each), each["metadata"]["name"]) for each in of_kind(manifests, "ServiceAccount")}
    named_elsewhere = values_of(name).get("serviceAccounts", {}).get("control", {}).get("name")
    for binding in of_kind(manifests, "RoleBinding"):
        assert binding["roleRef"]["name"] in {each["metadata"]["name"] for each in of_kind(manifests, "Role")}
        (subject,) = binding["subjects"]
        assert (subject["namespace"], subject["name"]) in accounts or subject["name"] == named_elsewhere


def test_each_project_has_what_its_pods_need() -> None:
    manifests = rendered("projects")
    for namespace in ("epochal-default", "epochal-flights", "orders-streams"):
        kinds = sorted(each["kind"] for each in manifests if each["metadata"].get("namespace") == namespace)
        assert [kind for kind in kinds if kind != "ResourceQuota"] == [
            *["NetworkPolicy"] * 3,
            *["Role"] * 2,
            *["RoleBinding"] * 2,
            *["ServiceAccount"] * 3,
        ]
    assert {each["metadata"]["name"] for each in of_kind(manifests, "Namespace")} == {
        "epochal-default",
        "epochal-flights",
    }
    flights = named(manifests, "Namespace", "epochal-flights")
    assert flights["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    (quota,) = of_kind(manifests, "ResourceQuota")
    assert (quota["metadata"]["namespace"], quota["spec"]["hard"]["pods"]) == ("epochal-flights", 60)
    identities = [
        (namespace_of(each), each["metadata"]["annotations"]["eks.amazonaws.com/role-arn"].rpartition("/")[2])
        for each in of_kind(manifests, "ServiceAccount")
        if "annotations" in each["metadata"]
    ]
    assert sorted(identities) == [
        *[("epochal-flights", "epochal-flights")] * 3,
        (NAMESPACE, "epochal-control"),
    ]


def test_what_the_launcher_is_told_is_what_it_reads() -> None:
    settings = pytest.importorskip("epochal.service.domain.kubernetes.pod_settings")
    for name in ("kubernetes", "projects", "everything"):
        manifests = rendered(name)
        (text,) = named(manifests, "ConfigMap", "epochal-kubernetes")["data"].values()
        read = settings.KubernetesSettings.model_validate_json(text)
        read.check_apart(NAMESPACE)
        said = values_of(name)["kubernetes"]
        projects = said.get("projects") or yaml.safe_load((CHART / "values.yaml").read_text())["kubernetes"]["projects"]
        assert read.namespaces == {project["project"]: project["namespace"] for project in projects}
        accounts = {each["metadata"]["name"] for each in of_kind(manifests, "ServiceAccount")}
        assert {read.service_account, read.executor_service_account, read.builder_service_account} <= accounts
        assert (read.spare_drivers, read.spare_builders) == (0, 1)
    assert read.image == "registry.example/epochal-driver:1" and read.token_seconds == 1800


def test_drivers_may_do_what_spark_needs_and_no_more() -> None:
    role = named(rendered("kubernetes"), "Role", "epochal-driver")
    (rule,) = role["rules"]
    rights = pytest.importorskip("epochal.driver.pod")
    assert sorted(rule["verbs"]) == sorted(rights.NEEDED)


def test_control_planes_on_sqlite_are_one_and_are_replaced_without_a_second_one() -> None:
    manifests = rendered("defaults")
    deployment = named(manifests, "Deployment", "epochal")
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    claim = named(manifests, "PersistentVolumeClaim", "epochal")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    found = pod(manifests, "control")
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "epochal"}} in found.spec["volumes"]
    assert found.environment["EPOCHAL_INTERNAL_URL"]["value"] == "http://epochal-internal.streams.svc:8766"
    assert not of_kind(manifests, "Job") and not of_kind(manifests, "PodDisruptionBudget")


def test_control_planes_on_postgresql_are_replaced_one_after_the_other() -> None:
    manifests = rendered("postgresql")
    deployment = named(manifests, "Deployment", "epochal")
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    found = pod(manifests, "control")
    assert found.environment["EPOCHAL_INTERNAL_URL"]["value"] == "http://$(POD_IP):8766"
    names = list(found.environment)
    assert names.index("POD_IP") < names.index("EPOCHAL_INTERNAL_URL"), "a variable is known to those after it"
    assert not of_kind(manifests, "PersistentVolumeClaim")
    spread = found.spec["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in spread] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    assert all(selects(each["labelSelector"]["matchLabels"], found.labels) for each in spread)
    assert named(manifests, "PodDisruptionBudget", "epochal-control")["spec"]["maxUnavailable"] == 1


def test_a_catalog_is_migrated_before_an_upgrade() -> None:
    (job,) = of_kind(rendered("postgresql"), "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    found = pod(rendered("postgresql"), "migration")
    assert found.arguments[0] == "migrate" and "EPOCHAL_DATABASE_URL" in found.environment
    assert not of_kind(render({**POSTGRESQL, "migration": {"enabled": False}}), "Job")


def test_query_nodes_keep_nothing_and_may_nothing() -> None:
    manifests = rendered("query-nodes")
    found = pod(manifests, "query")
    assert {"--role=query", "--workers=4", "--store=s3://bucket/epochal"} <= {*found.arguments}
    assert {"name": "data", "emptyDir": {"sizeLimit": "50Gi"}} in found.spec["volumes"]
    assert found.spec["serviceAccountName"] == "epochal-query" and "EPOCHAL_ADMIN_TOKEN_FILE" not in found.environment
    scaled = rendered("query-autoscaling")
    assert named(scaled, "HorizontalPodAutoscaler", "epochal-query")["spec"]["maxReplicas"] == 10
    assert named(scaled, "PodDisruptionBudget", "epochal-query")["spec"]["maxUnavailable"] == "25%"


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


def test_drivers_and_executors_are_reached_by_one_another_alone() -> None:
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
    """Whether a policy lets its pods call an address outside the cluster."""
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
def test_pods_call_no_metadata_service_unless_that_is_allowed(name: str) -> None:
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
        if not restricted:  # the rest is open
            assert all(permits(policy["spec"], each, 5432) for each in ("10.1.2.3", "203.0.113.7", "2001:db8::1"))
        assert permits(policy["spec"], "169.254.20.10", 53)  # the cache of the cluster's DNS on each node


def test_a_metadata_service_can_be_opened() -> None:
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


def test_a_closed_network_lets_pods_call_what_they_have_to() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(rendered("closed-network"), "NetworkPolicy")}
    database = {"protocol": "TCP", "port": 5432}
    for name, spec in policies.items():
        assert spec["policyTypes"] == ["Ingress", "Egress"], name
        called = [port for rule in spec["egress"] for port in rule.get("ports", ())]
        assert {"protocol": "UDP", "port": 53} in called and database in called, name
        calls_the_cluster = any("10.0.0.1/32" in str(rule) for rule in spec["egress"])
        assert calls_the_cluster is (name in ("epochal-control", "epochal-driver")), name


def test_rules_for_prometheus_are_those_of_the_file() -> None:
    (rule,) = of_kind(rendered("watched"), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy" / "prometheus" / "epochal.rules.yaml").read_text())
    (monitor,) = of_kind(rendered("watched"), "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "metrics", "key": "token"}


def test_everybody_who_calls_an_encrypted_port_knows_it_and_its_authority() -> None:
    manifests = rendered("encrypted")
    control = pod(manifests, "control")
    assert control.environment["EPOCHAL_INTERNAL_URL"]["value"] == "https://epochal-internal.streams.svc:8766"
    assert "--public-url=https://epochal.streams.svc:8765" in control.arguments
    for component in ("control", "query"):
        found = pod(manifests, component)
        (container,) = found.spec["containers"]
        mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        volumes = {each["name"]: each for each in found.spec["volumes"]}
        assert volumes[mounted["/run/secrets/epochal-tls"]]["secret"]["secretName"] == "epochal-tls"
        assert volumes[mounted["/etc/epochal-oidc"]]["configMap"]["name"] == "epochal-oidc"
        assert found.environment["EPOCHAL_TLS_KEY"]["value"] == "/run/secrets/epochal-tls/tls.key"
        probes = [container[f"{kind}Probe"]["httpGet"]["scheme"] for kind in ("startup", "liveness", "readiness")]
        assert probes == ["HTTPS"] * 3
    (monitor,) = of_kind(manifests, "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == "https" and endpoint["tlsConfig"]["ca"]["secret"]["key"] == "ca.crt"
    assert pod(manifests, "test").environment["EPOCHAL_URL"]["value"] == "https://epochal:8765"
    settings = KubernetesSettings.model_validate_json(
        named(manifests, "ConfigMap", "epochal-kubernetes")["data"]["kubernetes.json"]
    )
    assert settings.authority == "authorities"


def test_who_people_are_is_said_to_every_control_plane_and_query_node(tmp_path: Path) -> None:
    (text,) = named(rendered("encrypted"), "ConfigMap", "epochal-oidc")["data"].values()
    file = tmp_path / "oidc.json"
    file.write_text(text)
    assert read_oidc_settings(file).roles["platform"] == {"default": Role.ADMIN}
    assert not of_kind(rendered("kubernetes"), "ConfigMap")[1:]


def test_on_openshift_the_namespace_decides_on_users() -> None:
    for each in pods(rendered("openshift")):
        assert {"runAsUser", "runAsGroup", "fsGroup"}.isdisjoint(each.spec["securityContext"]), each.owner


def test_whatever_can_be_added_is_there() -> None:
    manifests = rendered("everything")
    for component in ("control", "query"):
        found = pod(manifests, component)
        (container,) = found.spec["containers"]
        assert container["image"].startswith("registry.example/epochal@sha256:0123")
        assert {"AWS_REGION", "AWS_SECRET_ACCESS_KEY"} <= found.environment.keys()
        assert container["envFrom"] == [{"configMapRef": {"name": "store"}}]
        assert {"name": "authorities", "mountPath": "/etc/authorities", "readOnly": True} in container["volumeMounts"]
        assert found.labels["example.com/scraped"] == "true" and found.labels["team"] == "streams"
        assert found.spec["priorityClassName"] == "streams" and found.spec["nodeSelector"] == {"disk": "fast"}
        assert found.spec["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}]
        assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "15"]
        assert found.spec["serviceAccountName"] == f"epochal-{component}"
    control = pod(manifests, "control")
    assert control.environment["EPOCHAL_DATABASE_URL"]["valueFrom"]["secretKeyRef"] == {"name": "catalog", "key": "uri"}
    assert control.environment["EPOCHAL_INTERNAL_URL"]["value"] == "http://epochal-internal.streams.svc:9000"
    assert "--kept-events=20000" in control.arguments
    for manifest in manifests:
        assert manifest["metadata"]["annotations"]["example.com/owner"] == "streams"
        assert manifest["metadata"]["labels"]["team"] == "streams"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "image.repository is required: build helm/Dockerfile"),
        ({**IMAGE, "control": {"replicas": 2}}, "SQLite is for one control plane: name a PostgreSQL"),
        ({**IMAGE, "database": {"existingSecret": "catalog"}}, "store is required with PostgreSQL"),
        ({**POSTGRESQL, "database": {"existingSecret": "a", "url": "postgresql://b/c"}}, "give one of them"),
        ({**IMAGE, "query": {"replicas": 1}}, "query.replicas needs PostgreSQL"),
        (
            {**POSTGRESQL, "query": {"autoscaling": {"enabled": True, "minReplicas": 4, "maxReplicas": 3}}},
            "minReplicas is above",
        ),
        ({**IMAGE, "kubernetes": {"enabled": True}}, "store is required with kubernetes.enabled"),
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
def test_wrong_values_are_refused_with_a_sentence(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmError, match=said):
        render(values)


def subschemas(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from subschemas(below, f"{path}.{name}".lstrip("."))
    if isinstance(schema.get("items"), dict):
        yield from subschemas(schema["items"], f"{path}[]")
    for number, below in enumerate(schema.get("anyOf", ())):
        yield from subschemas(below, f"{path}({number})")


def test_the_schema_refuses_whatever_it_does_not_know() -> None:
    """Only objects of Kubernetes itself are left to the cluster."""
    open_ones = {
        path
        for path, schema in [*subschemas(SCHEMA), *subschemas({"properties": SCHEMA["definitions"]}, "definitions")]
        if schema.get("type") == "object" and "additionalProperties" not in schema
    }
    assert open_ones == {"global", "definitions.named", "definitions.kubernetesObject"}


def test_the_schema_knows_every_value_and_no_other() -> None:
    def paths(schema: Mapping[str, Any], above: str = "") -> Iterator[str]:
        for name, below in schema.get("properties", {}).items():
            path = f"{above}{name}"
            if "properties" in below and path not in FREE:
                yield from paths(below, f"{path}.")
            elif below.get("type") == "array" and "properties" in below["items"]:
                yield from paths(below["items"], f"{path}[].")
            else:
                yield path

    assert {*paths(SCHEMA)} - {"global"} == {value.path for value in documented_values()}


FREE = {"control.affinity", "query.affinity", "kubernetes.driver.template", "kubernetes.executor.template"}


def test_the_table_of_the_page_is_that_of_the_values() -> None:
    """``python -m tools.chart_values`` puts it there."""
    assert table() in (ROOT / "helm" / "README.md").read_text()


SAYS_ITSELF = {
    *("replicas", "port", "type", "annotations", "labels", "size", "namespace", "accessMode", "interval"),
    *("scrapeTimeout", "minReplicas", "maxReplicas", "maxUnavailable", "runAsUser", "runAsGroup", "fsGroup"),
    *("podLabels", "podAnnotations", "nodeSelector", "tolerations", "affinity", "pullPolicy", "resources"),
    *("className", "serviceAccount"),
}
"""Names that are Kubernetes' own, or whose section says what they are."""


def test_the_values_that_the_page_shows_are_taken() -> None:
    values: dict[str, Any] = {}
    for block in blocks_of("helm/README.md", "yaml"):
        values |= yaml.safe_load(block.text)
    manifests = render(values)
    assert named(manifests, "Deployment", "epochal-query")["spec"]["replicas"] == 2
    assert (
        of_kind(manifests, "Ingress") and of_kind(manifests, "ServiceMonitor") and of_kind(manifests, "ResourceQuota")
    )


def test_readme_shows_values_that_are_taken_and_an_application_that_can_be_applied(tmp_path: Path) -> None:
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
        by_its_section = name in SAYS_ITSELF or (name == "enabled" and section in described)
        assert value.comment or by_its_section, value.path


def test_the_chart_is_of_the_package_that_is_there() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]
    assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", chart["version"])
