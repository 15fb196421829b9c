"""The manifest of a builder's pod, and the requests that a warm builder can serve."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from epochal.contracts.configuration import Configuration
from epochal.errors import EnvironmentProblem, OptionError
from epochal.service.domain.building import Analyse, BuildRequest, suits_warm
from epochal.service.domain.kubernetes.builders import BuilderPod, builder_manifest, needs_own_pod
from epochal.service.domain.kubernetes.conditions import BUILDERS, Phase, condition_of, refusal
from epochal.service.domain.kubernetes.pod_settings import KubernetesSettings

SETTINGS = KubernetesSettings(image="registry.example/epochal:1", images=("registry.example/teams/*:*",))
URL = "http://plane-0:8766"


def manifest(
    spark: dict[str, str] | None = None, settings: KubernetesSettings = SETTINGS, **more: Any
) -> dict[str, Any]:
    pod = BuilderPod("epochal-builder-1", "team-a", URL, 3600.0, spark or {}, **more)
    return builder_manifest(pod, settings)


def test_builder_manifests_are_valid() -> None:
    kubernetes_validate.validate(manifest(warm=True), "1.31", strict=True)
    kubernetes_validate.validate(manifest({"spark.driver.memory": "1g"}, sized=True), "1.31", strict=True)


def test_builders_have_no_rights_and_no_secrets() -> None:
    spec = manifest(warm=True)["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("epochal-builder", False)
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"], spec["enableServiceLinks"]) == ("Never", 3600, False)
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {each["name"] for each in container["env"]} == {
        *("HOME", "SPARK_LOCAL_DIRS", "PYTHONUNBUFFERED"),
        *("EPOCHAL_CONTROL_PLANES", "EPOCHAL_ORDERS_TOKEN_FILE"),
    }
    assert [set(volume) - {"name"} for volume in spec["volumes"]] == [{"emptyDir"}, {"emptyDir"}, {"projected"}]


def test_builders_read_the_store_with_the_secret_of_drivers() -> None:
    settings = SETTINGS.model_copy(update={"store_secret": "epochal-store"})
    (container,) = manifest(settings=settings)["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "epochal-store"}}]


def test_templates_cannot_give_builders_rights() -> None:
    template = {
        "spec": {
            "serviceAccountName": "admin",
            "automountServiceAccountToken": True,
            "restartPolicy": "Always",
            "containers": [
                {
                    "name": "driver",
                    "command": ["sh"],
                    "resources": {"limits": {"memory": "64Gi"}},
                    "env": [{"name": "A"}],
                }
            ],
        }
    }
    spec = manifest(settings=SETTINGS.model_copy(update={"template": template}))["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("epochal-builder", False)
    assert spec["restartPolicy"] == "Never"
    (container,) = spec["containers"]
    assert (container["name"], container["command"][0]) == ("builder", "python")
    assert {"name": "A"} in container["env"] and container["resources"]["limits"] == {"memory": "2Gi"}


def test_pod_options_of_an_application_require_its_own_builder() -> None:
    spark = {
        "spark.kubernetes.container.image": "registry.example/teams/a:2",
        "spark.kubernetes.driverEnv.REGION": "north",
        "spark.kubernetes.driver.secretKeyRef.EPOCHAL_SECRET_DB": "database:password",
        "spark.kubernetes.node.selector.disk": "ssd",
    }
    for option, value in spark.items():
        assert needs_own_pod({option: value}, sized=False), option
    spec = manifest(spark)["spec"]
    (container,) = spec["containers"]
    assert container["image"] == "registry.example/teams/a:2" and spec["nodeSelector"] == {"disk": "ssd"}
    secret = {"secretKeyRef": {"name": "database", "key": "password"}}
    assert {"name": "EPOCHAL_SECRET_DB", "valueFrom": secret} in container["env"]
    with pytest.raises(EnvironmentProblem, match="evil"):
        manifest({"spark.kubernetes.container.image": "evil:1"})
    with pytest.raises(OptionError, match="set by the control plane"):
        manifest({"spark.kubernetes.namespace": "kube-system"})


def test_only_trials_and_rekeys_depend_on_the_size() -> None:
    spark = {"spark.driver.memory": "4g", "spark.kubernetes.driver.request.cores": "2"}
    assert not needs_own_pod(spark, sized=False) and needs_own_pod(spark, sized=True)
    memory = [
        manifest(spark, sized=sized)["spec"]["containers"][0]["resources"]["limits"]["memory"]
        for sized in (False, True)
    ]
    assert memory == ["2Gi", "5734Mi"]


@pytest.mark.parametrize(
    ("option", "suits"),
    [
        ("spark.kubernetes.driver.request.cores", True),
        ("spark.executor.instances", True),
        ("spark.driver.memory", True),
        ("spark.sql.shuffle.partitions", False),
    ],
)
def test_a_warm_builder_suits_an_analysis_without_sql_options(option: str, suits: bool) -> None:
    configuration = Configuration(spark={option: "1"})
    request = BuildRequest(artifact="a.py", parameters={}, configuration=configuration, seconds=1, work=Analyse())  # type: ignore[arg-type]
    assert suits_warm(request) is suits


def test_errors_of_builders_name_the_builder() -> None:
    message = refusal(403, 'pods "x" is forbidden: exceeded quota: small', "team-a", BUILDERS).message
    assert "the builder's pod" in message and "`builder_memory`" in message and "driver's" not in message
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    pod = {"spec": manifest()["spec"], "status": {"containerStatuses": [{"name": "builder", "state": ended}]}}
    condition = condition_of(pod, sort=BUILDERS)
    assert (condition.phase, condition.exit_code) == (Phase.ENDED, -9)
    assert condition.cause is not None and "limit of 2Gi" in condition.cause
