"""Rights of each service account of the release, as the API reports them for a token of the account."""

from __future__ import annotations

import itertools
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kubernetes.installed.installation import APPLICATIONS, NAMESPACE, Installation

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1800)]

CONTROL, QUERY = (NAMESPACE, "epochal"), (NAMESPACE, "epochal-query")
DRIVER, EXECUTOR = (APPLICATIONS, "epochal-driver"), (APPLICATIONS, "epochal-executor")
BUILDER = (APPLICATIONS, "epochal-builder")
ACCOUNTS = {
    "control planes": CONTROL,
    "query nodes": QUERY,
    "drivers": DRIVER,
    "executors": EXECUTOR,
    "builders": BUILDER,
}
NAMESPACES = (NAMESPACE, APPLICATIONS, "default", "kube-system")
CONTROL_PLANE_RIGHTS = {("pods", verb) for verb in ("create", "get", "list", "watch", "patch", "delete")} | {
    ("pods/log", "get"),
    ("events", "list"),
}
DRIVER_RIGHTS = {("pods", verb) for verb in ("create", "get", "list", "watch", "delete", "deletecollection")}
GRANTED = {("control planes", APPLICATIONS): CONTROL_PLANE_RIGHTS, ("drivers", APPLICATIONS): DRIVER_RIGHTS}
"""All granted rights (resources and verbs), by account and namespace."""
REVIEWS = {"selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"}
"""Resources with which every account can query its own identity and rights."""


@pytest.mark.parametrize("account", ACCOUNTS)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_accounts_have_only_the_rights_of_the_chart(installed: Installation, account: str, namespace: str) -> None:
    """The API lists the rights over all resources."""
    token = installed.cluster.account_token(*ACCOUNTS[account])
    body = {"spec": {"namespace": namespace}}
    review = installed.cluster.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body, token)
    assert set(_rights(review["status"]["resourceRules"])) == GRANTED.get((account, namespace), set())


@dataclass(frozen=True)
class Call:
    """``path``: from ``/api``; ``{namespace}`` is the namespace."""

    method: str
    path: str
    body: Any = None

    def status(self, installed: Installation, token: str, namespace: str) -> int:
        """Return the status code of the API."""
        path = self.path.format(namespace=namespace)
        try:
            match self.method:
                case "GET":
                    installed.cluster.get(path, token)
                case "POST":
                    installed.cluster.create(path, self.body, token)
                case _:
                    installed.cluster.delete(path, token=token)
        except urllib.error.HTTPError as error:
            return error.code
        return 200


CORE, APPS = "/api/v1/namespaces/{namespace}", "/apis/apps/v1/namespaces/{namespace}"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
POD = {
    "metadata": {"name": "intruder"},
    "spec": {"containers": [{"name": "main", "image": "test/missing:1"}]},
}
TOKEN_REQUEST = {"spec": {"audiences": []}}
EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
READ_SECRETS = Call("GET", f"{CORE}/secrets")
FORBIDDEN = {
    "read secrets": READ_SECRETS,
    "read the administrator's token": Call("GET", f"{CORE}/secrets/epochal-admin"),
    "read the catalog's password": Call("GET", f"{CORE}/secrets/epochal-database"),
    "read config maps": Call("GET", f"{CORE}/configmaps"),
    "make itself a token": Call("POST", f"{CORE}/serviceaccounts/epochal/token", TOKEN_REQUEST),
    "make itself a driver's token": Call("POST", f"{CORE}/serviceaccounts/epochal-driver/token", TOKEN_REQUEST),
    "run a command in a pod": Call("POST", f"{CORE}/pods/any/exec?command=id&stdout=true"),
    "attach to a pod": Call("POST", f"{CORE}/pods/any/attach?stdout=true"),
    "forward a port of a pod": Call("POST", f"{CORE}/pods/any/portforward?ports=8766"),
    "add a container to a pod": Call("GET", f"{CORE}/pods/any/ephemeralcontainers"),
    "give itself rights": Call("POST", f"{RBAC}/roles", {"metadata": {"name": "all"}, "rules": [EVERYTHING]}),
    "read bindings": Call("GET", f"{RBAC}/rolebindings"),
    "start a deployment": Call("GET", f"{APPS}/deployments"),
    "delete a deployment": Call("DELETE", f"{APPS}/deployments/epochal"),
    "read leases": Call("GET", "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"),
    "open the network": Call(
        "DELETE", "/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/epochal-control"
    ),
    "read nodes": Call("GET", "/api/v1/nodes"),
    "make a namespace": Call("POST", "/api/v1/namespaces", {"metadata": {"name": "mine"}}),
}
PODS = {
    "list pods": Call("GET", f"{CORE}/pods"),
    "start a pod": Call("POST", f"{CORE}/pods", POD),
    "delete a pod": Call("DELETE", f"{CORE}/pods/any"),
    "read a pod's log": Call("GET", f"{CORE}/pods/any/log"),
}


@pytest.mark.parametrize("account", ACCOUNTS)
def test_forbidden_calls_fail(installed: Installation, account: str) -> None:
    """Checked in every namespace; calls on pods only where the account has no rights on pods."""
    token = installed.cluster.account_token(*ACCOUNTS[account])
    answers = {
        (action, namespace): call.status(installed, token, namespace)
        for namespace in NAMESPACES
        for action, call in _forbidden(account, namespace)
    }
    assert {key: status for key, status in answers.items() if status != 403} == {}


def _forbidden(account: str, namespace: str) -> Iterator[tuple[str, Call]]:
    yield from FORBIDDEN.items()
    if (account, namespace) not in GRANTED:
        yield from PODS.items()


def test_drivers_cannot_start_unrestricted_pods(installed: Installation) -> None:
    """Drivers can start pods, but only those that Pod Security level ``restricted`` admits."""
    token = installed.cluster.account_token(*DRIVER)
    with pytest.raises(urllib.error.HTTPError) as refused:
        installed.cluster.create(f"/api/v1/namespaces/{APPLICATIONS}/pods", POD, token)
    assert b'violates PodSecurity \\"restricted' in refused.value.read()


def test_only_control_planes_mount_api_tokens(installed: Installation) -> None:
    """Query nodes do not call the API."""
    mounted = {
        component: {any("projected" in volume for volume in pod["spec"]["volumes"]) for pod in pods.values()}
        for component, pods in ((name, installed.component(name)) for name in ("control", "query"))
    }
    assert mounted == {"control": {True}, "query": {False}}


def _rights(rules: list[Any]) -> Iterator[tuple[str, str]]:
    for rule in rules:
        for resource, verb in itertools.product(rule["resources"], rule["verbs"]):
            if resource not in REVIEWS:
                yield resource, verb
