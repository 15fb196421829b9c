"""Start of a driver in a pod: it fetches its orders from a control plane, which identifies the driver by its pod."""

from __future__ import annotations

import json
import logging
import os
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from epochal.driver.http_catalog import HttpCatalog
from epochal.driver.orders import (
    ADDRESS_VARIABLE,
    CONTROL_PLANES_VARIABLE,
    TOKEN_FILE_VARIABLE,
    DriverOrders,
    ExitCode,
    SpareOrders,
)
from epochal.errors import EnvironmentProblem, EpochalError, Fenced
from epochal.logs import configure, log_format
from epochal.wire.internal_api import new_driver_token

log = logging.getLogger("epochal.driver")


PATIENCE_SECONDS = 600.0
"""Timeout for fetching orders while no control plane answers. A supervisor with a shorter timeout ends the pod first.
"""


MOUNTED = Path("/var/run/secrets/kubernetes.io/serviceaccount")


NEEDED = ("create", "get", "list", "watch", "delete", "deletecollection")
"""Operations of Spark on pods: those of executors and its own."""


_SECONDS = 10.0


_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def begin(name: str) -> bytes | ExitCode:
    """Fetch the orders; on failure, log the reason and return the exit code of the driver."""
    configure(log_format(), logging.INFO, sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        return fetched_orders(name)
    except Fenced as error:
        log.error("fenced: %s", error)
        return ExitCode.FENCED
    except EpochalError as error:
        log.error("there are no orders: %s", error)
        return ExitCode.BAD_ORDERS


def fetched_orders(name: str, environment: Mapping[str, str] = os.environ) -> bytes:
    """The orders document that other drivers read from standard input. ``name``: ``{execution}-{attempt}``.

    The driver generates the token for its later calls and sends only its SHA-256: an intercepted answer therefore
    contains no credential. Raises the problem that the control plane answers, such as ``Unauthenticated`` and
    ``Fenced``; ``CatalogUnavailable``; ``EnvironmentProblem`` if this is not the pod of a driver.
    """
    execution, _, attempt = name.rpartition("-")
    try:
        control_planes = environment[CONTROL_PLANES_VARIABLE].split()
        pods_token = Path(environment[TOKEN_FILE_VARIABLE]).read_text().strip()
        number = int(attempt)
    except (KeyError, ValueError, OSError) as error:
        raise EnvironmentProblem(
            f"A driver that fetches its orders needs {CONTROL_PLANES_VARIABLE}, {TOKEN_FILE_VARIABLE} and the name of "
            f"its attempt, which the launcher of pods sets: {error!r}."
        ) from None
    token = new_driver_token(execution, number)
    catalog = HttpCatalog(control_planes, pods_token, execution, number, patience_seconds=PATIENCE_SECONDS)
    try:
        orders = catalog.orders(token)
    finally:
        catalog.close()
    return in_this_pod(orders, environment).model_dump_json().encode()


def in_this_pod(orders: DriverOrders, environment: Mapping[str, str]) -> DriverOrders:
    """Add the settings that only the pod has, and create its working folder and the files that Spark reads. Raises
    ``EnvironmentProblem``."""
    _enter(orders.work_directory)
    if orders.executor_template is None:
        return orders
    spark = _with_executors(orders.configuration.spark, orders.executor_template, environment)
    return orders.model_copy(update={"configuration": orders.configuration.model_copy(update={"spark": spark})})


def spark_in_this_pod(orders: SpareOrders, environment: Mapping[str, str]) -> SpareOrders:
    """Like :func:`in_this_pod`, for a spare without an application. Raises ``EnvironmentProblem``."""
    if orders.executor_template is None:
        return orders
    return orders.model_copy(update={"spark": _with_executors(orders.spark, orders.executor_template, environment)})


def _enter(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
    except OSError as error:
        raise _unwritable(error, folder) from error


def _with_executors(
    spark: Mapping[str, str], template: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, str]:
    """Spark's options with this pod's address. Writes the executors' pod template to the path in the options."""
    file = Path(spark["spark.kubernetes.executor.podTemplateFile"])
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(template))
    except OSError as error:
        raise _unwritable(error, file) from error
    address = environment.get(ADDRESS_VARIABLE, "")
    host = f"[{address}]" if ":" in address else address
    return {**spark, "spark.driver.host": host, "spark.driver.bindAddress": host}


def _unwritable(error: OSError, path: Path) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"The driver cannot write to {error.filename or path}: {error.strerror}. Its pod needs a volume there, which "
        "the launcher defines."
    )


def check_executor_rights(namespace: str, environment: Mapping[str, str] = os.environ, mounted: Path = MOUNTED) -> None:
    """Check the permissions of this pod's service account. Raises ``EnvironmentProblem`` with the missing ones. If the
    cluster does not answer the check, a missing permission surfaces in Spark."""
    try:
        url = f"https://{environment['KUBERNETES_SERVICE_HOST']}:{environment['KUBERNETES_SERVICE_PORT']}"
        headers = {"Authorization": f"Bearer {(mounted / 'token').read_text().strip()}"}
        trust = ssl.create_default_context(cafile=str(mounted / "ca.crt"))
        with httpx.Client(base_url=url, headers=headers, verify=trust, timeout=_SECONDS, trust_env=False) as cluster:
            refused = [verb for verb in NEEDED if not _is_allowed(cluster, namespace, verb)]
    except (KeyError, OSError, ValueError, httpx.HTTPError) as error:
        log.warning("the cluster does not say whether executors may be started: %r", error)
        return
    if refused:
        raise EnvironmentProblem(
            f"The service account of the driver may not {', '.join(refused)} pods in the namespace {namespace!r}, so "
            "that Spark cannot start executors there. Bind the role of drivers to it, as the chart does for the "
            "namespaces of projects, or let the application run in one pod, with the master local[2]."
        )


def _is_allowed(cluster: httpx.Client, namespace: str, verb: str) -> bool:
    attributes = {"namespace": namespace, "verb": verb, "resource": "pods"}
    answer = cluster.post(_REVIEWS, json={"spec": {"resourceAttributes": attributes}})
    answer.raise_for_status()
    return bool(answer.json()["status"]["allowed"])
