"""Namespaces of control planes and of a project's pods, with the rights of an installation."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from epochal.service.domain.kubernetes.pod_settings import KubernetesSettings, TokenIssuer
from tests.kit.kubernetes import KubernetesCluster
from tests.kit.kubernetes.cluster import ISSUER

CONTROL, DRIVER, EXECUTOR, BUILDER = "epochal-control", "epochal-driver", "epochal-executor", "epochal-builder"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
CONTROL_PLANE_RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "watch", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
]
DRIVER_RULES = [
    {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["create", "get", "list", "watch", "delete", "deletecollection"],
    }
]
_numbers = itertools.count(1)


@dataclass
class Project:
    """``namespace``: has the service accounts of drivers, executors and builders. ``control``: has that of control
    planes."""

    cluster: KubernetesCluster
    namespace: str
    control: str

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}"

    def settings(self, image: str, **changes: Any) -> KubernetesSettings:
        """Return the settings of a control plane outside the cluster with the rights of its service account."""
        token = self.cluster.account_token(self.control, CONTROL)
        token_file = self.cluster.folder / f"token-{self.control}"
        token_file.write_text(token)
        issuer = TokenIssuer(
            issuer=ISSUER,
            keys=f"{self.cluster.url}/openid/v1/jwks",
            authority=self.cluster.authority,
            token=token_file,
        )
        defaults: dict[str, Any] = {
            "namespaces": {"default": self.namespace},
            "own_namespace": self.control,
            "kubeconfig": self.cluster.kubeconfig(token, self.control),
            "issuer": issuer,
            "image": image,
            "cpu": "100m",
            "memory": "64Mi",
        }
        return KubernetesSettings.model_validate({**defaults, **changes})

    def pods(self) -> Mapping[str, Any]:
        return {item["metadata"]["name"]: item for item in self.cluster.get(f"{self.path}/pods")["items"]}

    def forbid(self, account: str) -> None:
        """Remove the rights of this account in the namespace."""
        self.cluster.delete(f"{_rbac(self.namespace)}/rolebindings/{account}")

    def end(self) -> None:
        for name in self.pods():
            with suppress(HTTPError):  # already deleted
                self.cluster.delete(f"{self.path}/pods/{name}", {"gracePeriodSeconds": 0})


def make_project(cluster: KubernetesCluster) -> Project:
    number = next(_numbers)
    project = Project(cluster, f"project-{number}", f"epochal-{number}")
    cluster.make_namespace(project.control)
    cluster.make_namespace(project.namespace, RESTRICTED)
    for namespace, account in (
        (project.control, CONTROL),
        (project.namespace, DRIVER),
        (project.namespace, EXECUTOR),
        (project.namespace, BUILDER),
    ):
        cluster.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": account}})
    _allow(project, CONTROL, project.control, CONTROL_PLANE_RULES)
    _allow(project, DRIVER, project.namespace, DRIVER_RULES)
    return project


def _allow(project: Project, account: str, namespace: str, rules: list[dict[str, Any]]) -> None:
    metadata = {"metadata": {"name": account}}
    project.cluster.create(f"{_rbac(project.namespace)}/roles", {**metadata, "rules": rules})
    binding = {
        **metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    project.cluster.create(f"{_rbac(project.namespace)}/rolebindings", binding)


def _rbac(namespace: str) -> str:
    return f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"


def scripted_python(folder: Path, python: str) -> Path:
    """Create a folder whose ``python`` always runs the program in the variable ``PROGRAM``."""
    folder.mkdir()
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nexec {python} -c "$PROGRAM"\n')
    program.chmod(0o755)
    return folder
