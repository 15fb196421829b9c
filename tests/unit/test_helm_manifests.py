"""The chart's manifests, rendered with each of its ci files: Kubernetes' schemas, security, and promised contents."""

from __future__ import annotations

import base64
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from epochal.cli.main import app
from epochal.service.domain.identity import read_oidc_settings
from epochal.service.domain.kubernetes.pod_settings import KubernetesSettings
from epochal.wire.tokens import Role
from tests.kit.charts import (
    CHART,
    IMAGE,
    NAMESPACE,
    POSTGRESQL,
    VALUES,
    every_file,
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

kubernetes_validate = pytest.importorskip("kubernetes_validate")

ROOT = Path(__file__).parents[2]
PROMETHEUS_OPERATOR_KINDS = {"ServiceMonitor", "PrometheusRule"}


@every_file
def test_every_manifest_fits_the_schemas_of_kubernetes(name: str) -> None:
    manifests = rendered(name)
    for manifest in manifests:
        if manifest["kind"] in PROMETHEUS_OPERATOR_KINDS:
            continue
        for version in ("1.25", "1.36"):
            kubernetes_validate.validate(manifest, version, strict=True)
    identities = [(each["kind"], namespace_of(each), each["metadata"]["name"]) for each in manifests]
    assert len(set(identities)) == len(identities)


@every_file
def test_lint_reports_no_problem(name: str) -> None:
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
def test_selectors_and_ports_match(name: str) -> None:
    manifests = rendered(name)
    every_pod = list(pods(manifests))
    for manifest in manifests:
        if manifest["kind"] == "Service":
            chosen = [each for each in every_pod if selects(manifest["spec"]["selector"], each.labels)]
            assert chosen, manifest["metadata"]["name"]
            for port in manifest["spec"]["ports"]:
                assert all(port["targetPort"] in each.ports for each in chosen)
        elif manifest["kind"] in ("Deployment", "PodDisruptionBudget"):
            selector = manifest["spec"]["selector"]["matchLabels"]
            chosen = [each for each in every_pod if selects(selector, each.labels)]
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
def test_arguments_are_options_of_the_command(name: str) -> None:
    command = get_command(app)
    for each in pods(rendered(name)):
        verb, *arguments = each.arguments
        known = {option for parameter in command.commands[verb].params for option in parameter.opts}  # type: ignore[attr-defined]
        used = {argument.partition("=")[0] for argument in arguments}
        assert used <= known, each.owner
        assert "$(" not in str(arguments), "values of variables would appear in the list of processes"


def test_environment_variables_are_documented() -> None:
    pages = [*(ROOT / "docs" / "operations").glob("*.md"), ROOT / "docs" / "reference" / "settings.md"]
    text = "".join(page.read_text() for page in pages)
    found = {name for file in VALUES for each in pods(rendered(file)) for name in each.environment}
    assert {name for name in found if name.startswith("EPOCHAL_") and f"`{name}`" not in text} == set()


@every_file
def test_secrets_are_referenced_and_never_written_out(name: str) -> None:
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


def test_the_chart_generates_a_valid_admin_token() -> None:
    from epochal.service.domain.secrets import UserToken

    first, second = (named(render(IMAGE), "Secret", "epochal-admin")["data"]["token"] for _ in range(2))
    assert first != second
    assert UserToken.parse(base64.b64decode(first).decode()) is not None


@every_file
def test_rights_are_minimal_and_only_in_namespaces_of_projects(name: str) -> None:
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


def test_each_project_has_the_resources_that_its_pods_need() -> None:
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


def test_the_launcher_reads_the_rendered_settings() -> None:
    settings = pytest.importorskip("epochal.service.domain.kubernetes.pod_settings")
    for name in ("kubernetes", "projects", "everything"):
        manifests = rendered(name)
        (text,) = named(manifests, "ConfigMap", "epochal-kubernetes")["data"].values()
        read = settings.KubernetesSettings.model_validate_json(text)
        read.check_apart(NAMESPACE)
        values = values_of(name)["kubernetes"]
        projects = (
            values.get("projects") or yaml.safe_load((CHART / "values.yaml").read_text())["kubernetes"]["projects"]
        )
        assert read.namespaces == {project["project"]: project["namespace"] for project in projects}
        accounts = {each["metadata"]["name"] for each in of_kind(manifests, "ServiceAccount")}
        assert {read.service_account, read.executor_service_account, read.builder_service_account} <= accounts
        assert (read.spare_drivers, read.spare_builders) == (0, 1)
    assert read.image == "registry.example/epochal-driver:1" and read.token_seconds == 1800


def test_drivers_have_exactly_the_rights_that_spark_needs() -> None:
    role = named(rendered("kubernetes"), "Role", "epochal-driver")
    (rule,) = role["rules"]
    rights = pytest.importorskip("epochal.driver.pod")
    assert sorted(rule["verbs"]) == sorted(rights.NEEDED)


def test_sqlite_allows_one_control_plane_at_a_time() -> None:
    manifests = rendered("defaults")
    deployment = named(manifests, "Deployment", "epochal")
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    claim = named(manifests, "PersistentVolumeClaim", "epochal")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    found = pod(manifests, "control")
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "epochal"}} in found.spec["volumes"]
    assert found.environment["EPOCHAL_INTERNAL_URL"]["value"] == "http://epochal-internal.streams.svc:8766"
    assert not of_kind(manifests, "Job") and not of_kind(manifests, "PodDisruptionBudget")


def test_control_planes_on_postgresql_are_replaced_one_by_one() -> None:
    manifests = rendered("postgresql")
    deployment = named(manifests, "Deployment", "epochal")
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    found = pod(manifests, "control")
    assert found.environment["EPOCHAL_INTERNAL_URL"]["value"] == "http://$(POD_IP):8766"
    names = list(found.environment)
    assert names.index("POD_IP") < names.index("EPOCHAL_INTERNAL_URL"), "variables refer only to previous ones"
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


def test_query_nodes_have_no_durable_storage_and_no_rights() -> None:
    manifests = rendered("query-nodes")
    found = pod(manifests, "query")
    assert {"--role=query", "--workers=4", "--store=s3://bucket/epochal"} <= {*found.arguments}
    assert {"name": "data", "emptyDir": {"sizeLimit": "50Gi"}} in found.spec["volumes"]
    assert found.spec["serviceAccountName"] == "epochal-query" and "EPOCHAL_ADMIN_TOKEN_FILE" not in found.environment
    scaled = rendered("query-autoscaling")
    assert named(scaled, "HorizontalPodAutoscaler", "epochal-query")["spec"]["maxReplicas"] == 10
    assert named(scaled, "PodDisruptionBudget", "epochal-query")["spec"]["maxUnavailable"] == "25%"


def test_prometheus_rules_equal_the_shipped_file() -> None:
    (rule,) = of_kind(rendered("watched"), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy" / "prometheus" / "epochal.rules.yaml").read_text())
    (monitor,) = of_kind(rendered("watched"), "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "metrics", "key": "token"}


def test_callers_of_encrypted_ports_get_the_scheme_and_the_authority() -> None:
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


def test_the_launcher_gets_the_secret_of_the_store_by_name() -> None:
    def read(name: str) -> KubernetesSettings:
        (text,) = named(rendered(name), "ConfigMap", "epochal-kubernetes")["data"].values()
        return KubernetesSettings.model_validate_json(text)

    settings = read("everything")
    assert settings.store_secret == "epochal-store"
    assert settings.store_variables == {"AWS_REGION": "eu-north-1", "AWS_ENDPOINT_URL": "https://s3.example"}
    assert (read("kubernetes").store_secret, read("kubernetes").store_variables) == (None, {})
    assert "envFrom" not in pod(rendered("kubernetes"), "control").containers[0]


def test_oidc_settings_are_rendered_only_when_configured(tmp_path: Path) -> None:
    (text,) = named(rendered("encrypted"), "ConfigMap", "epochal-oidc")["data"].values()
    file = tmp_path / "oidc.json"
    file.write_text(text)
    assert read_oidc_settings(file).roles["platform"] == {"default": Role.ADMIN}
    assert not of_kind(rendered("kubernetes"), "ConfigMap")[1:]


def test_pods_on_openshift_set_no_user_ids() -> None:
    for each in pods(rendered("openshift")):
        assert {"runAsUser", "runAsGroup", "fsGroup"}.isdisjoint(each.spec["securityContext"]), each.owner


def test_every_optional_value_is_rendered() -> None:
    manifests = rendered("everything")
    for component in ("control", "query"):
        found = pod(manifests, component)
        (container,) = found.spec["containers"]
        assert container["image"].startswith("registry.example/epochal@sha256:0123")
        assert {"AWS_PROFILE", "AWS_SECRET_ACCESS_KEY"} <= found.environment.keys()
        assert container["envFrom"] == [{"configMapRef": {"name": "store"}}, {"secretRef": {"name": "epochal-store"}}]
        assert found.environment["AWS_ENDPOINT_URL"]["value"] == "https://s3.example"
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


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]
    assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", chart["version"])
