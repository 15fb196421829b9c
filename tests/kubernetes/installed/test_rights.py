"""What each service account may do, as the release ships it: asked of the API with a token of the account."""

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
OF_CONTROL_PLANES = {("pods", verb) for verb in ("create", "get", "list", "watch", "patch", "delete")} | {
    ("pods/log", "get"),
    ("events", "list"),
}
OF_DRIVERS = {("pods", verb) for verb in ("create", "get", "list", "watch", "delete", "deletecollection")}
GIVEN = {("control planes", APPLICATIONS): OF_CONTROL_PLANES, ("drivers", APPLICATIONS): OF_DRIVERS}
"""Resources and verbs, by who has them and where: there are no others."""
OF_EVERYBODY = {"selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"}
"""To ask what one is and may."""


@pytest.mark.parametrize("who", ACCOUNTS)
@pytest.mark.parametrize("where", NAMESPACES)
def test_nobody_has_a_right_beside_those_of_the_chart(installed: Installation, who: str, where: str) -> None:
    """As the API itself says, of all resources there are."""
    token = installed.cluster.account_token(*ACCOUNTS[who])
    body = {"spec": {"namespace": where}}
    review = installed.cluster.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body, token)
    assert set(_rights(review["status"]["resourceRules"])) == GIVEN.get((who, where), set())


@dataclass(frozen=True)
class Call:
    """``path``: from ``/api``; ``{space}`` is the namespace."""

    method: str
    path: str
    body: Any = None

    def status(self, installed: Installation, token: str, space: str) -> int:
        """What the API answers."""
        path = self.path.format(space=space)
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


CORE, APPS = "/api/v1/namespaces/{space}", "/apis/apps/v1/namespaces/{space}"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/{space}"
POD = {
    "metadata": {"name": "intruder"},
    "spec": {"containers": [{"name": "main", "image": "nobody/has:it"}]},
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
    "read leases": Call("GET", "/apis/coordination.k8s.io/v1/namespaces/{space}/leases"),
    "open the network": Call("DELETE", "/apis/networking.k8s.io/v1/namespaces/{space}/networkpolicies/epochal-control"),
    "read nodes": Call("GET", "/api/v1/nodes"),
    "make a namespace": Call("POST", "/api/v1/namespaces", {"metadata": {"name": "mine"}}),
}
PODS = {
    "list pods": Call("GET", f"{CORE}/pods"),
    "start a pod": Call("POST", f"{CORE}/pods", POD),
    "delete a pod": Call("DELETE", f"{CORE}/pods/any"),
    "read a pod's log": Call("GET", f"{CORE}/pods/any/log"),
}


@pytest.mark.parametrize("who", ACCOUNTS)
def test_each_forbidden_call_fails(installed: Installation, who: str) -> None:
    """In every namespace; of pods only where the account has nothing to do with them."""
    token = installed.cluster.account_token(*ACCOUNTS[who])
    answers = {
        (what, space): call.status(installed, token, space)
        for space in NAMESPACES
        for what, call in _forbidden(who, space)
    }
    assert {key: status for key, status in answers.items() if status != 403} == {}


def _forbidden(who: str, space: str) -> Iterator[tuple[str, Call]]:
    yield from FORBIDDEN.items()
    if (who, space) not in GIVEN:
        yield from PODS.items()


def test_a_driver_cannot_start_a_pod_that_the_namespace_does_not_admit(installed: Installation) -> None:
    """It may start pods, and each has to be restricted: not root, nothing of the node."""
    token = installed.cluster.account_token(*DRIVER)
    with pytest.raises(urllib.error.HTTPError) as refused:
        installed.cluster.create(f"/api/v1/namespaces/{APPLICATIONS}/pods", POD, token)
    assert b'violates PodSecurity \\"restricted' in refused.value.read()


def test_pods_mount_tokens_only_where_they_call_the_api(installed: Installation) -> None:
    """Control planes do; query nodes do not."""
    mounted = {
        component: {any("projected" in volume for volume in pod["spec"]["volumes"]) for pod in pods.values()}
        for component, pods in ((name, installed.component(name)) for name in ("control", "query"))
    }
    assert mounted == {"control": {True}, "query": {False}}


def _rights(rules: list[Any]) -> Iterator[tuple[str, str]]:
    for rule in rules:
        for resource, verb in itertools.product(rule["resources"], rule["verbs"]):
            if resource not in OF_EVERYBODY:
                yield resource, verb
