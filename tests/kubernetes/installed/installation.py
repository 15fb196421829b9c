"""Epochal as a release of its chart on a cluster with three nodes, installed as the page "In production" says.

The snapshot store is a bucket of a real S3 server, whose keys pods have from Secrets. Applications write to a shared
folder, which pods mount through claims. Images are this checkout. Everything else is as in the chart.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import helm_python as helm
import psycopg
import yaml
from sqlalchemy import make_url

from epochal.client import Client
from epochal.testing.servers.control_plane import COMMAND
from epochal.testing.servers.postgresql import PostgresqlServer, postgresql
from epochal.testing.servers.s3 import SeaweedServer, s3
from tests.kit.kubernetes import KubernetesCluster, kubernetes
from tests.kit.kubernetes.containers import Image
from tests.kit.kubernetes.kubelet import Kubelet
from tests.kit.kubernetes.network import PodNetwork, pod_network
from tests.kit.kubernetes.pods import Pod
from tests.kit.kubernetes.services import ServiceProxy
from tests.kit.waiting import eventually

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "epochal"
RELEASE = NAMESPACE = "epochal"
APPLICATIONS = "epochal-applications"
IMAGE, SCRIPTED_IMAGE = "registry.example/epochal", "registry.example/scripted:1"
NODES = 3
NODE_TIMEOUT_SECONDS = 6
PATIENCE_SECONDS = 600
STORE_SECRET = "epochal-store"
STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
SHARED = Path("/srv/epochal")
"""The path of the shared folder in pods."""
CONNECTIONS = 16
RESOURCES = {"requests": {"cpu": "50m", "memory": "64Mi"}}


@dataclass
class Installation:
    """``shared``: the folder that pods have at :data:`SHARED`. ``values``: the current values of the release."""

    cluster: KubernetesCluster
    network: PodNetwork
    postgresql: PostgresqlServer
    s3: SeaweedServer
    shared: Path
    images: Mapping[str, Image]
    helm: helm.Config
    nodes: dict[str, Kubelet] = field(default_factory=dict)
    catalog: str = ""
    release_store: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    public: ServiceProxy = field(init=False)
    lookups: ServiceProxy = field(init=False)

    def __post_init__(self) -> None:
        self.public = ServiceProxy(self.cluster, NAMESPACE, RELEASE)
        self.lookups = ServiceProxy(self.cluster, NAMESPACE, f"{RELEASE}-query")

    def prepare(self) -> None:
        """Create an empty catalog and an empty bucket."""
        self.catalog = self.postgresql.create_database()
        self.release_store = f"s3://{self.s3.create_bucket()}/epochal"

    def install(self, values: Mapping[str, Any]) -> None:
        """Run ``helm install --wait``, and provide what pods of the two namespaces need."""
        self.values = dict(values)
        self.provide(NAMESPACE)
        self.helm.install(CHART, RELEASE, self.values, namespace=NAMESPACE, wait="watcher", timeout=PATIENCE_SECONDS)
        self.provide(APPLICATIONS)

    def upgrade(self, **changed: Any) -> None:
        """Run ``helm upgrade --wait``. ``changed``: changed values, by top-level name."""
        self.values = merged(self.values, changed)
        self.helm.upgrade(CHART, RELEASE, self.values, namespace=NAMESPACE, wait="watcher", timeout=PATIENCE_SECONDS)

    def rollback(self) -> None:
        self.helm.rollback(RELEASE, wait="watcher", timeout=PATIENCE_SECONDS)

    def uninstall(self) -> None:
        self.helm.uninstall(RELEASE, wait="watcher", timeout=PATIENCE_SECONDS)

    @property
    def exists(self) -> bool:
        return any(release["name"] == RELEASE for release in self.helm.list())

    def local_values(self) -> dict[str, Any]:
        """Values specific to this cluster: images, the store, small pods, one network for all pods."""
        claim = {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}
        mount = {"name": "shared", "mountPath": str(SHARED)}

        def template(container: str) -> dict[str, Any]:
            return {"spec": {"volumes": [claim], "containers": [{"name": container, "volumeMounts": [mount]}]}}

        shared = {"extraVolumes": [claim], "extraVolumeMounts": [mount], "resources": RESOURCES, "drainSeconds": 2}
        address = {"name": "OWN_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        settings = {**shared, "extraEnv": [address]}
        # All pods share this machine's ports, so each listens only at its own address.
        host_option = ["--host=$(OWN_ADDRESS)"]
        return {
            "image": {"repository": IMAGE},
            "store": {
                "url": self.release_store,
                "env": {name: value for name, value in self.s3.environment().items() if name not in STORE_KEYS},
            },
            "control": {
                **settings,
                "connections": CONNECTIONS,
                "extraArgs": [*host_option, "--internal-host=$(OWN_ADDRESS)"],
            },
            "query": {**settings, "workers": 1, "extraArgs": host_option},
            "kubernetes": {
                "images": [SCRIPTED_IMAGE],
                "driver": {"cpu": "50m", "memory": "1Gi", "template": template("driver")},
                "executor": {"template": template("executor")},
                # No spares: on two cores idle builders would slow down the tests.
                "builder": {"cpu": "50m", "memory": "1Gi", "spares": 0},
            },
            "migration": {"resources": RESOURCES},
        }

    def provide(self, namespace: str) -> None:
        """Create the claim of the shared folder and the Secret of the store in a namespace, if they do not exist."""
        self._claim(namespace)
        self.give_keys(namespace)

    def give_keys(self, namespace: str) -> None:
        """Create the Secret of the store in a namespace, if it does not exist."""
        secrets = f"/api/v1/namespaces/{namespace}/secrets"
        if any(secret["metadata"]["name"] == STORE_SECRET for secret in self.cluster.get(secrets)["items"]):
            return
        keys = self.s3.environment()
        data = {name: base64.b64encode(keys[name].encode()).decode() for name in STORE_KEYS}
        self.cluster.create(secrets, {"metadata": {"name": STORE_SECRET}, "data": data})

    def _claim(self, namespace: str) -> None:
        claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        if any(claim["metadata"]["name"] == "shared" for claim in self.cluster.get(claims)["items"]):
            return
        uid = self.cluster.get(f"/api/v1/namespaces/{namespace}")["metadata"]["uid"]
        volume = f"shared-{namespace}-{uid[:8]}"
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": "shared"}
        spec = {**common, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(self.shared)}}
        self.cluster.create("/api/v1/persistentvolumes", {"metadata": {"name": volume}, "spec": spec})
        claim_spec = {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}}
        self.cluster.create(claims, {"metadata": {"name": "shared"}, "spec": claim_spec})

    @property
    def token(self) -> str:
        """The token of the first administrator, which the chart has created."""
        data = self.cluster.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{RELEASE}-admin")["data"]
        return base64.b64decode(data["token"]).decode()

    def client(self, project: str = "default") -> Client:
        return Client(self.public.url, self.token, project=project)

    def run(self, *arguments: str, folder: Path | None = None) -> str:
        """Run an ``epochal`` command against the public address, and return its output."""
        environment = {**os.environ, "EPOCHAL_URL": self.public.url, "EPOCHAL_TOKEN": self.token, "COLUMNS": "200"}
        done = subprocess.run(
            [COMMAND, *arguments], env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"$ epochal {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """Connect to the catalog."""
        return psycopg.connect(make_url(self.catalog).set(drivername="postgresql").render_as_string(False))

    def pods(self, namespace: str, selector: str = "") -> dict[str, Any]:
        """Return the pods that are not being deleted, by name."""
        found = self.cluster.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")["items"]
        return {pod["metadata"]["name"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}

    def namespaces(self) -> set[str]:
        return {space["metadata"]["name"] for space in self.cluster.get("/api/v1/namespaces")["items"]}

    def component(self, name: str) -> dict[str, Any]:
        """The pods of ``control`` or ``query``."""
        return self.pods(NAMESPACE, f"app.kubernetes.io/component%3D{name}")

    def driver(self, process: str) -> Any:
        """Return the pod of a driver. ``process``: its name in the attempt, ``{namespace}/{name}/{uid}``."""
        namespace, name, _ = process.split("/")
        return self.cluster.get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def executors(self, driver: Any) -> dict[str, Any]:
        """Return the executor pods that Spark has started for a driver pod."""
        metadata = driver["metadata"]
        found = self.pods(metadata["namespace"], "spark-role%3Dexecutor")
        return {name: pod for name, pod in found.items() if name.startswith(f"{metadata['name']}-exec-")}

    def on_node(self, pod: Any) -> Pod:
        """Return the running pod on its node."""
        found = self.nodes[pod["spec"]["nodeName"]].pod(pod["metadata"]["namespace"], pod["metadata"]["name"])
        assert found is not None
        return found

    def kill(self, pod: Any) -> None:
        """Kill the pod's processes with SIGKILL, as when the node runs out of memory."""
        process = self.on_node(pod).containers[0].process
        assert process is not None
        process.kill()

    def leader(self) -> Any | None:
        """Return the pod of the leading control plane."""
        with self.connect() as connection:
            row = connection.execute(
                "SELECT host FROM leases WHERE name = 'leader' AND expires_at > clock_timestamp()"
            ).fetchone()
        return None if row is None else self.component("control").get(str(row[0]))

    @property
    def is_ready(self) -> bool:
        """All Deployments have exactly their number of ready and updated replicas."""
        items = self.cluster.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"]
        return all(
            (item["status"].get("readyReplicas"), item["status"].get("updatedReplicas"), item["status"].get("replicas"))
            == (item["spec"]["replicas"],) * 3
            for item in items
        )

    def wait_until_ready(self) -> None:
        eventually(lambda: self.is_ready and bool(self.public.ready), PATIENCE_SECONDS)

    def add_node(self) -> None:
        number = len(self.nodes) + 1
        name = f"node-{number}"
        node = Kubelet(self.cluster, self.images, name, number, network=self.network)
        self.nodes[name] = node
        node.__enter__()

    def end_nodes(self) -> None:
        for node in self.nodes.values():
            node.__exit__(None, None, None)

    def lose_node(self, name: str) -> None:
        """Lose a node, delete it from the cluster and add a new one, as a cloud provider does.

        Waits until services no longer route connections to its pods.
        """
        pods = [pod for pod in self.pods(NAMESPACE).values() if pod["spec"].get("nodeName") == name]
        lost = {pod["status"].get("podIP") for pod in pods}
        self.nodes[name].lose(end=True)
        self.add_node()
        self.cluster.delete(f"/api/v1/nodes/{name}")
        self.eventually(lambda: not lost & {address for address, _ in self.public.ready + self.lookups.ready})

    def eventually(self, condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the condition holds. The message of a timeout describes all pods."""
        try:
            eventually(condition, seconds)
        except AssertionError:
            raise AssertionError(f"timed out; {self.description()}") from None

    def description(self) -> str:
        pods = [*self.pods(NAMESPACE).values()]
        with suppress(urllib.error.HTTPError):
            pods += self.pods(APPLICATIONS).values()
        lines = []
        for pod in pods:
            metadata, status = pod["metadata"], pod["status"]
            states = [each.get("state") for each in status.get("containerStatuses") or ()]
            lines.append(f"{metadata['name']} {status.get('phase')} {states}")
            with suppress(urllib.error.HTTPError):
                log = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log?tailLines=15"
                lines.append(self.cluster.text(log))
        return "\n".join(lines)


def head(client: Client, application: str) -> int:
    """Return the number of the latest committed epoch; 0 if there is none."""
    found = client.applications.get(application).head
    return 0 if found is None else found.epoch


@contextmanager
def installation(folder: Path) -> Iterator[Installation]:
    """Provide a cluster without a release. Raises ``ServerUnavailable``."""
    helm.disable_logging()  # failures raise exceptions
    with ExitStack() as stack:
        cluster = stack.enter_context(kubernetes(NODE_TIMEOUT_SECONDS))
        network = stack.enter_context(pod_network(cluster))
        server = stack.enter_context(postgresql())
        store = stack.enter_context(s3())
        release = stack.enter_context(helm.Config(kubeconfig_path=cluster.kubeconfig(), namespace=NAMESPACE))
        shared = folder / "shared"
        shared.mkdir()
        created = Installation(cluster, network, server, store, shared, _images(folder), release)
        stack.callback(created.public.close)
        stack.callback(created.lookups.close)
        stack.callback(created.end_nodes)
        for _ in range(NODES):
            created.add_node()
        created.prepare()
        yield created


def _images(folder: Path) -> dict[str, Image]:
    """Return images of this checkout, under the names that the chart and applications use."""
    places = [Path(sys.prefix), ROOT]
    python = Path(sys.executable)
    environment = {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        # Containers run as the user of the tests, which can be root.
        "EPOCHAL_DRIVER_USER": str(os.geteuid()),
        **{name: os.environ[name] for name in ("JAVA_HOME", "SPARK_SUBMIT_OPTS") if name in os.environ},
    }
    scripted = folder / "scripted"
    scripted.mkdir()
    program = scripted / "python"
    # Builders use the application's image, too; their commands run unchanged.
    program.write_text(
        f"""#!/bin/sh
if [ "$2" = epochal.driver ]; then shift 2; set -- -m tests.kubernetes.installed.scripted "$@"; fi
exec {python} "$@"
"""
    )
    program.chmod(0o755)
    driver_environment = {**environment, "PATH": f"{scripted}:{environment['PATH']}", "PYTHONPATH": str(ROOT)}
    return {
        f"{IMAGE}:{_version()}": Image(entrypoint=[str(COMMAND)], environment=environment, places=places),
        f"{IMAGE}:next": Image(entrypoint=[str(COMMAND)], environment=environment, places=places),
        SCRIPTED_IMAGE: Image(environment=driver_environment, places=[*places, scripted]),
    }


def _version() -> str:
    """Return the version of the chart, which is also its image tag."""
    return str(yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"])


def merged(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Merge values as Helm does: maps recursively, all other values are replaced."""
    merged_values = {
        name: merged(base[name], value) if isinstance(value, Mapping) and isinstance(base.get(name), Mapping) else value
        for name, value in override.items()
    }
    return {**base, **merged_values}
