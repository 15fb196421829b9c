"""May this driver start executors? Asked of the cluster before Spark is started, so that the answer is a sentence:
Spark itself only goes on trying."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import httpx

from epochal.errors import EnvironmentProblem

log = logging.getLogger("epochal.driver")

MOUNTED = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NEEDED = ("create", "get", "list", "watch", "delete", "deletecollection")
"""What Spark does with pods, executors and its own."""
_SECONDS = 10.0
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def check_executor_rights(namespace: str, environment: Mapping[str, str] = os.environ, mounted: Path = MOUNTED) -> None:
    """Raises ``EnvironmentProblem`` naming what this pod's service account may not do. Where the cluster does not say,
    Spark finds out."""
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
            "that Spark cannot have executors there. Bind the role of drivers to it, as the chart does for the "
            "namespaces of projects, or let the application run in one pod, with the master local[2]."
        )


def _is_allowed(cluster: httpx.Client, namespace: str, verb: str) -> bool:
    attributes = {"namespace": namespace, "verb": verb, "resource": "pods"}
    answer = cluster.post(_REVIEWS, json={"spec": {"resourceAttributes": attributes}})
    answer.raise_for_status()
    return bool(answer.json()["status"]["allowed"])
