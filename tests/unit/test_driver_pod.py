"""A driver in a pod: its orders, and the command that starts its executors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.contracts.configuration import Configuration
from epochal.driver.executor import executor_command
from epochal.driver.orders import ArtifactOrder, DriverOrders
from epochal.driver.pod import fetched_orders, in_this_pod
from epochal.errors import EnvironmentProblem
from epochal.service.domain.kubernetes.pod_settings import KubernetesSettings
from epochal.service.domain.kubernetes.spark import MASTER, TEMPLATE_FILE, WORK_FOLDER, orders_in_a_pod

SETTINGS = KubernetesSettings(image="epochal:1")


@pytest.fixture(autouse=True)
def working_folder() -> Iterator[None]:
    before = Path.cwd()
    yield
    os.chdir(before)


def orders(master: str) -> DriverOrders:
    return DriverOrders(
        control_planes=("http://plane:8766",),
        token="",
        execution="e",
        attempt=2,
        application="flights",
        artifact=ArtifactOrder(sha256="0" * 64, filename="pipeline.py"),
        configuration=Configuration(master=master, spark={"spark.executor.instances": "3"}),
        store="s3://store",
        work_directory=Path("/on/the/control/plane"),
    )


def test_a_driver_without_executors_only_gets_another_folder() -> None:
    changed = orders_in_a_pod(orders("local[2]"), SETTINGS, "team-a")
    assert changed == orders("local[2]").model_copy(update={"work_directory": Path(WORK_FOLDER)})


def test_a_driver_with_executors_gets_its_address_and_pod_template(tmp_path: Path) -> None:
    changed = orders_in_a_pod(orders(MASTER), SETTINGS, "team-a")
    assert changed.configuration.spark["spark.kubernetes.executor.podTemplateFile"] == TEMPLATE_FILE
    template = tmp_path / "work" / "template.json"
    spark = {**changed.configuration.spark, "spark.kubernetes.executor.podTemplateFile": str(template)}
    changed = changed.model_copy(
        update={
            "work_directory": tmp_path / "work",
            "configuration": changed.configuration.model_copy(update={"spark": spark}),
        }
    )
    received = in_this_pod(changed, {"EPOCHAL_POD_ADDRESS": "10.0.0.7"})
    assert json.loads(template.read_text())["spec"]["automountServiceAccountToken"] is False
    assert received.configuration.spark["spark.driver.host"] == "10.0.0.7"
    assert received.configuration.spark["spark.executor.instances"] == "3"
    assert Path.cwd() == tmp_path / "work"
    received = in_this_pod(changed, {"EPOCHAL_POD_ADDRESS": "fd00::7"})
    assert received.configuration.spark["spark.driver.bindAddress"] == "[fd00::7]"


def test_a_pod_without_a_writable_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(EnvironmentProblem, match="needs a volume"):
        in_this_pod(orders("local[2]").model_copy(update={"work_directory": file / "work"}), {})


@pytest.mark.parametrize("missing", ["EPOCHAL_CONTROL_PLANES", "EPOCHAL_ORDERS_TOKEN_FILE", "the name", "the token"])
def test_orders_require_the_environment_of_a_driver_pod(tmp_path: Path, missing: str) -> None:
    token = tmp_path / "token"
    environment = {"EPOCHAL_CONTROL_PLANES": "http://127.0.0.1:1", "EPOCHAL_ORDERS_TOKEN_FILE": str(token)}
    environment.pop(missing, None)
    if missing != "the token":
        token.write_text("token")
    with pytest.raises(EnvironmentProblem, match="which the launcher of pods sets"):
        fetched_orders("e-one" if missing == "the name" else "e-1", environment)


def test_the_executor_command_follows_the_variables_of_spark() -> None:
    environment = {
        "JAVA_HOME": "/java",
        "SPARK_JAVA_OPT_10": "-Dten",
        "SPARK_JAVA_OPT_0": "-Dzero",
        "SPARK_JAVA_OPT_2": "-Dtwo=a b",
        "SPARK_EXECUTOR_MEMORY": "1g",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
        "SPARK_EXECUTOR_ID": "4",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "e-1-exec-4",
    }
    command = executor_command(environment, Path("/spark"))
    assert command[:7] == ["/java/bin/java", "-Dzero", "-Dtwo=a b", "-Dten", "-Xms1g", "-Xmx1g", "-cp"]
    assert command[7:9] == ["/spark/jars/*", "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"]
    assert dict(zip(command[9::2], command[10::2], strict=True)) == {
        "--driver-url": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
        "--executor-id": "4",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.8",
        "--resourceProfileId": "0",
        "--podName": "e-1-exec-4",
    }
    with pytest.raises(KeyError):
        executor_command({"SPARK_EXECUTOR_MEMORY": "1g"}, Path("/spark"))
