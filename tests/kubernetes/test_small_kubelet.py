"""The test cluster behaves like a cluster in everything that Epochal's tests rely on."""

from __future__ import annotations

import base64
import json
import urllib.error
from pathlib import Path

import pytest

from tests.kit.kubernetes import KubernetesCluster
from tests.kit.kubernetes.cluster import ISSUER
from tests.kit.kubernetes.kubelet import Kubelet
from tests.kit.waiting import eventually
from tests.kubernetes.conftest import Pods

pytestmark = [pytest.mark.server, pytest.mark.long]

SERVE = "import http.server as h; h.ThreadingHTTPServer(('', PORT), h.SimpleHTTPRequestHandler).serve_forever()"


def test_pod_reports_its_exit_and_log(pods: Pods) -> None:
    pods.run("good", command="echo out; echo err >&2")
    pods.run("bad", command="echo because > /dev/termination-log; exit 3")
    assert pods.ended("good")["exitCode"] == 0
    assert sorted(pods.log("good").split()) == ["err", "out"]
    end = pods.ended("bad")
    assert (end["exitCode"], end["reason"], end["message"].strip()) == (3, "Error", "because")
    assert pods.status("bad")["phase"] == "Failed"


def test_containers_have_separate_file_systems(pods: Pods) -> None:
    pods.run("writer", command="echo x > /epochal-was-here; hostname; cat /epochal-was-here; ps | wc -l")
    assert pods.ended("writer")["exitCode"] == 0
    pods.run("reader", command="test -e /epochal-was-here")
    assert pods.ended("reader")["exitCode"] == 1
    assert pods.log("writer").split()[:2] == ["writer", "x"]
    closed = {"securityContext": {"readOnlyRootFilesystem": True}}
    pods.run("closed", command="echo x > /epochal-was-here", container=closed)
    assert pods.ended("closed")["exitCode"] != 0


def test_pod_waits_for_missing_volumes_with_a_warning(pods: Pods) -> None:
    volumes = [{"name": "site", "configMap": {"name": "site"}}, {"name": "keys", "secret": {"secretName": "keys"}}]
    mounts = [{"name": "site", "mountPath": "/etc/site"}, {"name": "keys", "mountPath": "/etc/keys", "readOnly": True}]
    pods.run("late", command="cat /etc/site/a /etc/keys/b", volumes=volumes, container={"volumeMounts": mounts})
    space = f"/api/v1/namespaces/{pods.namespace}"
    eventually(lambda: any(e["reason"] == "FailedMount" for e in pods.cluster.get(f"{space}/events")["items"]), 60)
    assert pods.status("late")["phase"] == "Pending"
    pods.cluster.create(f"{space}/configmaps", {"metadata": {"name": "site"}, "data": {"a": "from-map "}})
    secret = {"b": base64.b64encode(b"from-secret").decode()}
    pods.cluster.create(f"{space}/secrets", {"metadata": {"name": "keys"}, "data": secret})
    assert pods.ended("late")["exitCode"] == 0
    assert pods.log("late") == "from-map from-secret"


def test_claim_outlives_its_pod(pods: Pods) -> None:
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    pods.cluster.create(f"/api/v1/namespaces/{pods.namespace}/persistentvolumeclaims", claim)
    mounted = {
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "container": {"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
    }
    pods.run("first", command="echo kept > /data/file", **mounted)
    assert pods.ended("first")["exitCode"] == 0
    pods.run("second", command="cat /data/file", **mounted)
    assert pods.ended("second")["exitCode"] == 0
    assert pods.log("second") == "kept\n"


def test_projected_token_names_its_pod_and_audience(pods: Pods, cluster: KubernetesCluster) -> None:
    source = {"serviceAccountToken": {"audience": "epochal", "expirationSeconds": 600, "path": "token"}}
    volume = {"name": "orders", "projected": {"sources": [source]}}
    mount = {"volumeMounts": [{"name": "orders", "mountPath": "/var/run/secrets/epochal"}]}
    pods.run("driver", command="cat /var/run/secrets/epochal/token", volumes=[volume], container=mount)
    assert pods.ended("driver")["exitCode"] == 0
    part = pods.log("driver").split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    uid = cluster.get(f"{pods.path}/driver")["metadata"]["uid"]
    assert (claims["iss"], claims["aud"]) == (ISSUER, ["epochal"])
    assert claims["kubernetes.io"]["pod"] == {"name": "driver", "uid": uid}
    assert claims["exp"] - claims["iat"] == 600


def test_arguments_and_variables_can_refer_to_variables(pods: Pods) -> None:
    variables = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "GREETING", "value": "hello $(NAME)"},
    ]
    pods.run("greeter", command="echo '$(GREETING) $$(NAME)' $NAME", container={"env": variables})
    assert pods.ended("greeter")["exitCode"] == 0
    assert pods.log("greeter") == "hello greeter $(NAME) greeter\n"


def test_init_containers_run_first_and_in_order(pods: Pods) -> None:
    mount = {"volumeMounts": [{"name": "work", "mountPath": "/work-of-pod"}]}
    first = {"name": "first", "image": "shell:1", "args": ["echo 1 >> /work-of-pod/order"], **mount}
    second = {"name": "second", "image": "shell:1", "args": ["echo 2 >> /work-of-pod/order"], **mount}
    volumes = [{"name": "work", "emptyDir": {}}]
    last = "echo 3 >> /work-of-pod/order; cat /work-of-pod/order"
    pods.run("main", command=last, volumes=volumes, initContainers=[first, second], container=mount)
    assert pods.ended("main")["exitCode"] == 0
    assert pods.log("main").split() == ["1", "2", "3"]
    failing = {"name": "failing", "image": "shell:1", "args": ["exit 4"]}
    pods.run("never", command="true", initContainers=[failing])
    status = pods.wait("never", lambda status: status["phase"] == "Failed")
    assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 4


def test_deleted_pod_gets_sigterm_and_then_sigkill(pods: Pods, tmp_path: Path) -> None:
    seen = {
        "volumes": [{"name": "seen", "hostPath": {"path": str(tmp_path)}}],
        "container": {"volumeMounts": [{"name": "seen", "mountPath": "/seen"}]},
    }
    pods.run(
        "graceful", command="trap 'touch /seen/sigterm; exit 0' TERM; echo up; while :; do sleep 0.1; done", **seen
    )
    pods.run("stubborn", command="trap '' TERM; echo up; while :; do sleep 0.1; done")
    for name in ("graceful", "stubborn"):
        eventually(lambda name=name: "up" in pods.log(name), 60)  # type: ignore[misc]
        pods.cluster.delete(f"{pods.path}/{name}", {"gracePeriodSeconds": 5 if name == "graceful" else 1})
    eventually(lambda: pods.names() == set(), 60)
    assert (tmp_path / "sigterm").exists()


def test_deployment_becomes_ready_through_its_probes(pods: Pods, kubelet: Kubelet) -> None:
    port = 18_080
    container = {
        "name": "main",
        "image": "python:1",
        "args": [SERVE.replace("PORT", str(port)).replace("''", "'127.0.0.1'")],
        "startupProbe": {"tcpSocket": {"port": port, "host": "127.0.0.1"}, "periodSeconds": 1, "failureThreshold": 60},
        "readinessProbe": {"httpGet": {"port": port, "host": "127.0.0.1", "path": "/"}, "periodSeconds": 1},
        "livenessProbe": {"exec": {"command": ["sh", "-c", "test ! -e /tmp/sick"]}, "periodSeconds": 1},
    }
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    path = f"/apis/apps/v1/namespaces/{pods.namespace}/deployments"
    pods.cluster.create(path, {"metadata": {"name": "web"}, "spec": spec})
    eventually(lambda: pods.cluster.get(f"{path}/web")["status"].get("readyReplicas") == 1, 120)
    name = next(iter(pods.names()))
    pod = kubelet.pod(pods.namespace, name)
    assert pod is not None and pod.containers[0].process is not None
    assert pod.containers[0].process.run(["touch", "/tmp/sick"], 10) == 0
    pods.wait(name, lambda status: status["containerStatuses"][0]["restartCount"] >= 1)
    pods.cluster.delete(f"{path}/web")


def test_missing_image_is_not_pulled(pods: Pods) -> None:
    pods.run("none", image="test/missing:1")
    status = pods.wait(
        "none", lambda status: "waiting" in (status.get("containerStatuses") or [{}])[0].get("state", {})
    )
    assert status["containerStatuses"][0]["state"]["waiting"]["reason"] == "ImagePullBackOff"


def test_pod_with_too_large_requests_is_not_scheduled(pods: Pods) -> None:
    pods.run("large", command="true", container={"resources": {"requests": {"cpu": "1000"}}})
    status = pods.wait("large", lambda status: bool(status.get("conditions")))
    assert (status["conditions"][0]["type"], status["conditions"][0]["reason"]) == ("PodScheduled", "Unschedulable")


def test_pod_killed_for_memory_reports_it(pods: Pods, kubelet: Kubelet) -> None:
    pods.run("large", command="echo up; sleep 60")
    eventually(lambda: "up" in pods.log("large"), 60)
    pod = kubelet.pod(pods.namespace, "large")
    assert pod is not None
    pod.kill_for_memory("main")
    end = pods.ended("large")
    assert (end["exitCode"], end["reason"]) == (137, "OOMKilled")


def test_quotas_rights_and_pod_security_are_enforced(cluster: KubernetesCluster, pods: Pods) -> None:
    space = f"/api/v1/namespaces/{pods.namespace}"
    token = cluster.account_token(pods.namespace, "default")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        cluster.get(f"{space}/secrets", token)
    cluster.create(f"{space}/resourcequotas", {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    eventually(lambda: "hard" in cluster.get(f"{space}/resourcequotas/none").get("status", {}), 60)
    with pytest.raises(urllib.error.HTTPError) as refused:
        pods.run("one", command="true")
    assert "exceeded quota: none" in json.load(refused.value)["message"]
    cluster.delete(f"{space}/resourcequotas/none")
    cluster.patch(
        f"/api/v1/namespaces/{pods.namespace}",
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    )

    def is_refused() -> bool:
        try:
            pods.run("root", command="true")
        except urllib.error.HTTPError as error:
            return "violates PodSecurity" in json.load(error)["message"]
        pods.end()
        return False

    eventually(is_refused, 60)
