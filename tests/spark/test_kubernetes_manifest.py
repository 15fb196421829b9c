"""The manifest of a driver's pod: fixed fields, changes by templates and applications, and refusals."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from epochal.errors import EnvironmentProblem, OptionError
from epochal.service.domain.executions import DriverName
from epochal.service.domain.kubernetes.manifest import DriverPod, driver_manifest
from epochal.service.domain.kubernetes.pod_identity import labels_of
from epochal.service.domain.kubernetes.pod_settings import KubernetesSettings, read_kubernetes_settings
from epochal.service.domain.kubernetes.spark import (
    EXECUTOR,
    MASTER,
    driver_image,
    driver_memory,
    executor_settings,
    executor_template,
    mebibytes,
)
from epochal.service.domain.kubernetes.templates import merged
from epochal.service.runtime.launchers.kubernetes.launcher import passed_on
from epochal.wire.trust import CA_VARIABLE

SETTINGS = KubernetesSettings(image="registry.example/epochal:1", images=("registry.example/teams/*:*",))


def pod(master: str = "local[2]") -> DriverPod:
    name = DriverName("0123456789abcdef0123456789abcdef", 3)
    return DriverPod(name, "flights", master, {}, "team-a", ("http://plane-0:8766", "http://plane-1:8766"))


def with_option(option: str, value: str, master: str = "local[2]") -> DriverPod:
    return DriverPod(DriverName("e", 1), "flights", master, {option: value}, "team-a", ("http://plane:8766",))


def driver_of(manifest: dict[str, Any]) -> dict[str, Any]:
    containers = {container["name"]: container for container in manifest["spec"]["containers"]}
    driver: dict[str, Any] = containers["driver"]
    return driver


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def test_manifests_are_valid() -> None:
    template = {"spec": {"tolerations": [{"key": "spot", "operator": "Exists"}]}}
    settings = SETTINGS.model_copy(update={"template": template})
    for master in ("local[2]", MASTER):
        kubernetes_validate.validate(driver_manifest(pod(master), settings), "1.31", strict=True)
    kubernetes_validate.validate(executor_template(settings), "1.31", strict=True)


def test_driver_pod_has_the_name_and_labels_of_its_attempt() -> None:
    metadata = driver_manifest(pod(), SETTINGS)["metadata"]
    assert metadata["name"] == "0123456789abcdef0123456789abcdef-3"
    assert metadata["namespace"] == "team-a"
    assert metadata["labels"] == {
        "app.kubernetes.io/managed-by": "epochal",
        "app.kubernetes.io/component": "driver",
        "epochal.dev/application": "flights",
        "epochal.dev/execution": "0123456789abcdef0123456789abcdef",
        "epochal.dev/attempt": "3",
    }


def test_pods_have_a_restricted_security_context() -> None:
    spec = driver_manifest(pod(), SETTINGS)["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert spec["restartPolicy"] == "Never"
    assert spec["terminationGracePeriodSeconds"] == 60
    (executor,) = executor_template(SETTINGS)["spec"]["containers"]
    assert executor["securityContext"] == container["securityContext"]


def test_driver_fetches_its_orders_with_its_token_and_has_no_secret() -> None:
    manifest = driver_manifest(pod(), SETTINGS)
    driver = driver_of(manifest)
    assert [*driver["command"], *driver["args"]] == [
        *("python", "-m", "epochal.driver", "--fetch"),
        "0123456789abcdef0123456789abcdef-3",
    ]
    assert variables(driver)["EPOCHAL_CONTROL_PLANES"] == "http://plane-0:8766 http://plane-1:8766"
    token = {"audience": "epochal", "expirationSeconds": 3600, "path": "token"}
    volume = {"name": "epochal-token", "projected": {"sources": [{"serviceAccountToken": token}]}}
    assert volume in manifest["spec"]["volumes"]
    assert variables(driver)["EPOCHAL_ORDERS_TOKEN_FILE"] == "/var/run/secrets/epochal/token"
    assert "epd_" not in json.dumps(manifest)


def test_driver_trusts_the_configured_authority() -> None:
    """Through the variable that a driver reads. Without the setting, nothing is mounted."""
    named = SETTINGS.model_copy(update={"authority": "authorities"})
    spec = driver_manifest(pod(), named)["spec"]
    (container,) = spec["containers"]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "epochal-authority")
    (volume,) = (each for each in spec["volumes"] if each["name"] == "epochal-authority")
    (file,) = (each["value"] for each in container["env"] if each["name"] == CA_VARIABLE)
    assert volume["configMap"]["name"] == "authorities"
    assert file == f"{mount['mountPath']}/{volume['configMap']['items'][0]['path']}"
    assert "epochal-authority" not in str(driver_manifest(pod(), SETTINGS))


STORE = {"store_secret": "epochal-store", "store_variables": {"AWS_REGION": "eu-north-1"}}


def test_pods_read_the_secret_of_the_store_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control plane's own variables are in no manifest: neither its keys nor its identity."""
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.setenv(name, "of the control plane")
    own = passed_on(os.environ)
    template = {"spec": {"containers": [{"name": "driver", "envFrom": [{"configMapRef": {"name": "own"}}]}]}}
    executors = {"spec": {"containers": [{"name": "executor", "env": [{"name": "AWS_REGION", "value": "elsewhere"}]}]}}
    settings = SETTINGS.model_copy(update={**STORE, "template": template, "executor_template": executors})
    driver_pod = driver_manifest(replace(pod(MASTER), variables=own), settings)
    template_of_executors = executor_template(settings)
    for manifest in (driver_pod, template_of_executors):
        kubernetes_validate.validate(manifest, "1.31", strict=True)
        assert "of the control plane" not in json.dumps(manifest)
    driver, (executor,) = driver_of(driver_pod), template_of_executors["spec"]["containers"]
    secret = {"secretRef": {"name": "epochal-store"}}
    assert driver["envFrom"] == [{"configMapRef": {"name": "own"}}, secret]
    assert executor["envFrom"] == [secret]
    assert (variables(driver)["AWS_REGION"], variables(executor)["AWS_REGION"]) == ("eu-north-1", "elsewhere")
    assert "envFrom" not in driver_of(driver_manifest(pod(), SETTINGS))


def test_an_application_overrides_a_variable_of_the_store() -> None:
    settings = SETTINGS.model_copy(update=STORE)
    manifest = driver_manifest(with_option("spark.kubernetes.driverEnv.AWS_REGION", "us-east-1"), settings)
    assert variables(driver_of(manifest))["AWS_REGION"] == "us-east-1"


def test_a_secret_among_the_settings_is_refused() -> None:
    with pytest.raises(ValidationError, match="AWS_SECRET_ACCESS_KEY is a secret; put it into the Secret"):
        KubernetesSettings(image="a", store_variables={"AWS_SECRET_ACCESS_KEY": "k"})
    KubernetesSettings(image="a", store_variables={"AWS_SECRET_ACCESS_KEY": "secret(file:/run/secrets/key)"})


def test_only_a_driver_with_executor_pods_may_call_the_cluster_api() -> None:
    assert driver_manifest(pod(), SETTINGS)["spec"]["automountServiceAccountToken"] is False
    assert driver_manifest(pod("spark://master:7077"), SETTINGS)["spec"]["automountServiceAccountToken"] is False
    assert driver_manifest(pod(MASTER), SETTINGS)["spec"]["automountServiceAccountToken"] is True
    assert executor_template(SETTINGS)["spec"]["automountServiceAccountToken"] is False


def test_executors_belong_to_the_driver_and_encrypt_their_traffic() -> None:
    driver = pod(MASTER)
    spark = executor_settings(
        str(driver.name), labels_of(driver.name, "flights"), driver.spark, SETTINGS, driver.namespace
    )
    assert spark["spark.kubernetes.namespace"] == "team-a"
    assert spark["spark.kubernetes.driver.pod.name"] == spark["spark.kubernetes.executor.podNamePrefix"]
    assert len(spark["spark.kubernetes.executor.podNamePrefix"]) <= 47  # the maximum that Spark accepts
    assert spark["spark.kubernetes.executor.label.epochal.dev/execution"] == driver.name.execution
    assert (spark["spark.authenticate"], spark["spark.network.crypto.enabled"]) == ("true", "true")


@pytest.mark.parametrize(
    "option",
    [
        "spark.kubernetes.namespace",
        "spark.kubernetes.authenticate.driver.serviceAccountName",
        "spark.kubernetes.driver.podTemplateFile",
        "spark.kubernetes.executor.podTemplateFile",
        "spark.kubernetes.driver.volumes.hostPath.root.mount.path",
        "spark.authenticate.secret",
        "spark.driver.host",
    ],
)
def test_applications_cannot_set_options_of_the_launcher(option: str) -> None:
    with pytest.raises(OptionError, match=option):
        driver_manifest(with_option(option, "x"), SETTINGS)


@pytest.mark.parametrize(
    ("image", "allowed"),
    [
        ("registry.example/epochal:1", True),
        ("registry.example/teams/flights:2", True),
        ("registry.example/epochal:2", False),
        ("registry.example/teams/a/b:2", False),
        ("evil.example/registry.example/teams/flights:2", False),
        ("registry.example/teams/flights", False),
    ],
)
def test_only_allowed_images_are_used(image: str, allowed: bool) -> None:
    driver = with_option("spark.kubernetes.container.image", image)
    if allowed:
        assert driver_image(driver.spark, SETTINGS) == image
        assert driver_of(driver_manifest(driver, SETTINGS))["image"] == image
    else:
        with pytest.raises(EnvironmentProblem, match="not among those"):
            driver_manifest(driver, SETTINGS)


def test_executor_image_is_refused_in_the_driver_manifest() -> None:
    driver = with_option("spark.kubernetes.executor.container.image", "evil:1", MASTER)
    with pytest.raises(EnvironmentProblem, match="evil:1"):
        driver_manifest(driver, SETTINGS)


@pytest.mark.parametrize(
    ("spark", "memory"),
    [
        ({}, "2Gi"),
        ({"spark.driver.memory": "1g"}, f"{1024 + 409}Mi"),
        ({"spark.driver.memory": "512m"}, f"{512 + 384}Mi"),
        ({"spark.driver.memory": "2g", "spark.driver.memoryOverhead": "1g"}, "3072Mi"),
        ({"spark.driver.memory": "10g", "spark.driver.memoryOverheadFactor": "0.1"}, f"{10240 + 1024}Mi"),
    ],
)
def test_memory_of_a_pod_includes_the_overhead(spark: dict[str, str], memory: str) -> None:
    assert driver_memory(spark, "2Gi") == memory
    driver = DriverPod(DriverName("e", 1), "flights", "local[2]", spark, "team-a", ())
    resources = driver_of(driver_manifest(driver, SETTINGS))["resources"]
    assert resources == {"requests": {"cpu": "1", "memory": memory}, "limits": {"memory": memory}}


@pytest.mark.parametrize("text", ["", "lots", "-1g", "1.5g"])
def test_invalid_amounts_of_memory_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="not an amount of memory"):
        mebibytes(text)


def test_application_sets_labels_nodes_and_variables_by_spark_options() -> None:
    driver = DriverPod(
        DriverName("e", 1),
        "flights",
        "local[2]",
        {
            "spark.kubernetes.driver.label.team": "a",
            "spark.kubernetes.driver.label.epochal.dev/attempt": "99",
            "spark.kubernetes.driver.annotation.why": "because",
            "spark.kubernetes.node.selector.disk": "fast",
            "spark.kubernetes.driverEnv.REGION": "north",
            "spark.kubernetes.driverEnv.EPOCHAL_CONTROL_PLANES": "http://evil",
            "spark.kubernetes.driver.secretKeyRef.STORE_KEY": "store:key",
            "spark.kubernetes.driver.request.cores": "500m",
            "spark.kubernetes.driver.limit.cores": "2",
        },
        "team-a",
        ("http://plane:8766",),
    )
    manifest = driver_manifest(driver, SETTINGS)
    assert manifest["metadata"]["labels"]["team"] == "a"
    assert manifest["metadata"]["labels"]["epochal.dev/attempt"] == "1"
    assert manifest["metadata"]["annotations"] == {"why": "because"}
    assert manifest["spec"]["nodeSelector"] == {"disk": "fast"}
    seen = variables(driver_of(manifest))
    assert seen["REGION"] == "north"
    assert seen["EPOCHAL_CONTROL_PLANES"] == "http://plane:8766"
    assert seen["STORE_KEY"] == {"secretKeyRef": {"name": "store", "key": "key"}}
    resources = driver_of(manifest)["resources"]
    assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == ("500m", "2")
    with pytest.raises(OptionError, match="a colon"):
        driver_manifest(with_option("spark.kubernetes.driver.secretKeyRef.KEY", "store"), SETTINGS)


def test_template_changes_defaults_but_no_fixed_fields() -> None:
    template: dict[str, Any] = {
        "metadata": {"labels": {"cost": "7", "epochal.dev/execution": "other"}, "name": "other"},
        "spec": {
            "restartPolicy": "Always",
            "serviceAccountName": "other",
            "automountServiceAccountToken": True,
            "securityContext": {"runAsUser": 1000},
            "imagePullSecrets": [{"name": "registry"}],
            "volumes": [{"name": "work", "emptyDir": {"sizeLimit": "9Gi"}}, {"name": "store", "emptyDir": {}}],
            "containers": [
                {
                    "name": "driver",
                    "image": "other",
                    "command": ["sh"],
                    "resources": {"limits": {"memory": "8Gi"}},
                    "volumeMounts": [{"name": "store", "mountPath": "/store"}],
                    "env": [{"name": "HOME", "value": "/store"}, {"name": "EPOCHAL_CONTROL_PLANES", "value": "x"}],
                    "envFrom": [{"secretRef": {"name": "store"}}],
                },
                {"name": "mesh", "image": "mesh:1"},
            ],
        },
    }
    manifest = driver_manifest(pod(), SETTINGS.model_copy(update={"template": template}))
    spec, driver = manifest["spec"], driver_of(manifest)
    assert manifest["metadata"]["labels"]["cost"] == "7"
    assert manifest["metadata"]["labels"]["epochal.dev/execution"] == pod().name.execution
    assert manifest["metadata"]["name"] == str(pod().name)
    assert spec["restartPolicy"] == "Never"
    assert spec["serviceAccountName"] == "epochal-driver"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] == 1000
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["work"] == {"name": "work", "emptyDir": {"sizeLimit": "9Gi"}}
    assert set(volumes) == {"work", "temporary", "store", "epochal-token"}
    assert driver["image"] == SETTINGS.image
    assert driver["command"][0] == "python"
    assert driver["resources"]["limits"] == {"memory": "8Gi"}
    assert {mount["mountPath"] for mount in driver["volumeMounts"]} == {
        *("/var/lib/epochal/work", "/tmp", "/store", "/var/run/secrets/epochal")
    }
    assert variables(driver)["HOME"] == "/store"
    assert variables(driver)["EPOCHAL_CONTROL_PLANES"].startswith("http://plane-0")
    assert driver["envFrom"] == [{"secretRef": {"name": "store"}}]
    assert [container["name"] for container in spec["containers"]] == ["driver", "mesh"]


def test_an_executors_template_cannot_mount_a_token() -> None:
    template = {"spec": {"automountServiceAccountToken": True, "containers": [{"name": EXECUTOR, "command": ["sh"]}]}}
    result = executor_template(SETTINGS.model_copy(update={"executor_template": template}))
    assert result["spec"]["automountServiceAccountToken"] is False
    assert result["spec"]["containers"][0]["command"] == ["python", "-m", "epochal.driver.executor"]


NAMES = st.sampled_from(["env", "volumes", "containers", "tolerations", "labels", "command", "name"])
VALUES = st.recursive(
    st.one_of(st.integers(0, 3), st.sampled_from(["a", "b"])),
    lambda inner: st.one_of(
        st.dictionaries(NAMES, inner, max_size=3),
        st.lists(st.fixed_dictionaries({"name": st.sampled_from(["x", "y"])}), unique_by=lambda each: each["name"]),
    ),
    max_leaves=8,
)
MANIFESTS = st.dictionaries(NAMES, VALUES, max_size=4)


@given(MANIFESTS, MANIFESTS)
def test_merging_is_idempotent(below: Any, above: Any) -> None:
    once = merged(below, above)
    assert merged(once, above) == once
    assert merged(below, {}) == below
    assert merged({}, above) == above
    assert merged(above, above) == above
    assert set(once) == set(below) | set(above)


def test_settings_are_read_and_invalid_fields_are_named(tmp_path: Path) -> None:
    path = tmp_path / "kubernetes.json"
    path.write_text(json.dumps({"image": "epochal:1", "namespaces": {"default": "team-a"}}))
    assert read_kubernetes_settings(path).namespace("default") == "team-a"
    for document, field in (
        ({}, "image"),
        ({"image": "e", "namespaces": {"default": "Team A"}}, "namespaces.default"),
        ({"image": "e", "memory": "lots"}, "memory"),
        ({"image": "e", "template": {"containers": []}}, "template has containers"),
        ({"image": "e", "unknown": 1}, "unknown"),
    ):
        path.write_text(json.dumps(document))
        with pytest.raises(OptionError, match=field):
            read_kubernetes_settings(path)
    with pytest.raises(OptionError, match="cannot be read"):
        read_kubernetes_settings(tmp_path / "none.json")


def test_projects_and_the_control_plane_share_no_namespace() -> None:
    settings = SETTINGS.model_copy(update={"namespaces": {"default": "team-a", "billing": "epochal"}})
    settings.check_apart("epochal-system")
    with pytest.raises(OptionError, match=r"'billing'.*'epochal'"):
        settings.check_apart("epochal")
    shared = SETTINGS.model_copy(update={"namespaces": {"default": "a", "ads": "streams", "billing": "streams"}})
    with pytest.raises(OptionError, match=r"'ads' and 'billing' share the namespace 'streams'.*a separate namespace"):
        shared.check_apart("epochal")
    with pytest.raises(OptionError, match="share the namespace"):
        shared.check_apart(None)
    with pytest.raises(OptionError, match="'sales' has no namespace"):
        settings.namespace("sales")
