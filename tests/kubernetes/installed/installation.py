"""Epochal as a release of its chart, on a real API with three nodes: what README's "In production" leads to.

In place of the object store there is a folder, which pods have by claims; in place of a registry, images that are this
checkout. All else is what the chart says.
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
NODE_GONE_SECONDS = 6
PATIENCE_SECONDS = 600
SHARED = Path("/srv/epochal")
"""Where pods see the folder that they share."""
CONNECTIONS = 16
RESOURCES = {"requests": {"cpu": "50m", "memory": "64Mi"}}


@dataclass
class Installation:
    """``shared``: what pods see at :data:`SHARED`. ``values``: of the release as it is now."""

    cluster: KubernetesCluster
    network: PodNetwork
    postgresql: PostgresqlServer
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

    # The release.

    def prepare(self) -> None:
        """An empty catalog, an empty store."""
        self.catalog = self.postgresql.create_database()
        self.release_store = f"file://{SHARED}/{self.catalog.rpartition('/')[2]}/store"

    def install(self, values: Mapping[str, Any]) -> None:
        """As ``helm install --wait``; then what applications need of the shared folder."""
        self.values = dict(values)
        self.claim(NAMESPACE)
        self.helm.install(CHART, RELEASE, self.values, namespace=NAMESPACE, wait="watcher", timeout=PATIENCE_SECONDS)
        self.claim(APPLICATIONS)

    def upgrade(self, **changed: Any) -> None:
        """As ``helm upgrade --wait``; ``changed``: values that are not as before, by their first name."""
        self.values = merged(self.values, changed)
        self.helm.upgrade(CHART, RELEASE, self.values, namespace=NAMESPACE, wait="watcher", timeout=PATIENCE_SECONDS)

    def rollback(self) -> None:
        self.helm.rollback(RELEASE, wait="watcher", timeout=PATIENCE_SECONDS)

    def uninstall(self) -> None:
        self.helm.uninstall(RELEASE, wait="watcher", timeout=PATIENCE_SECONDS)

    @property
    def is_there(self) -> bool:
        return any(release["name"] == RELEASE for release in self.helm.list())

    def local_values(self) -> dict[str, Any]:
        """What is different here from any cluster: images, the store, small pods, one network for all pods."""
        claim = {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}
        mount = {"name": "shared", "mountPath": str(SHARED)}

        def template(container: str) -> dict[str, Any]:
            return {"spec": {"volumes": [claim], "containers": [{"name": container, "volumeMounts": [mount]}]}}

        shared = {"extraVolumes": [claim], "extraVolumeMounts": [mount], "resources": RESOURCES, "drainSeconds": 2}
        address = {"name": "OWN_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        own = {**shared, "extraEnv": [address]}
        # All pods share this machine's ports: each listens at its own address alone.
        there = ["--host=$(OWN_ADDRESS)"]
        return {
            "image": {"repository": IMAGE},
            "store": self.release_store,
            "control": {
                **own,
                "connections": CONNECTIONS,
                "extraArgs": [*there, "--internal-host=$(OWN_ADDRESS)"],
            },
            "query": {**own, "workers": 1, "extraArgs": there},
            "kubernetes": {
                "images": [SCRIPTED_IMAGE],
                "driver": {"cpu": "50m", "memory": "1Gi", "template": template("driver")},
                "executor": {"template": template("executor")},
                # Started for each build, and gone with it: on two cores nothing waits beside what is tested.
                "builder": {"cpu": "50m", "memory": "1Gi", "spares": 0},
            },
            "migration": {"resources": RESOURCES},
        }

    def claim(self, namespace: str) -> None:
        """The shared folder for the pods of a namespace, once."""
        claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        if any(claim["metadata"]["name"] == "shared" for claim in self.cluster.get(claims)["items"]):
            return
        uid = self.cluster.get(f"/api/v1/namespaces/{namespace}")["metadata"]["uid"]
        volume = f"shared-{namespace}-{uid[:8]}"
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": "shared"}
        spec = {**common, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(self.shared)}}
        self.cluster.create("/api/v1/persistentvolumes", {"metadata": {"name": volume}, "spec": spec})
        wanted = {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}}
        self.cluster.create(claims, {"metadata": {"name": "shared"}, "spec": wanted})

    # Who uses it.

    @property
    def token(self) -> str:
        """The first administrator's, which the chart has made."""
        data = self.cluster.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{RELEASE}-admin")["data"]
        return base64.b64decode(data["token"]).decode()

    def client(self, project: str = "default") -> Client:
        return Client(self.public.url, self.token, project=project)

    def run(self, *arguments: str, folder: Path | None = None) -> str:
        """What an ``epochal`` command says, as a person on another machine runs it."""
        environment = {**os.environ, "EPOCHAL_URL": self.public.url, "EPOCHAL_TOKEN": self.token, "COLUMNS": "200"}
        done = subprocess.run(
            [COMMAND, *arguments], env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"$ epochal {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """To the catalog."""
        return psycopg.connect(make_url(self.catalog).set(drivername="postgresql").render_as_string(False))

    # What runs.

    def pods(self, namespace: str, selector: str = "") -> dict[str, Any]:
        """By name, those that are not being deleted."""
        found = self.cluster.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")["items"]
        return {pod["metadata"]["name"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}

    def namespaces(self) -> set[str]:
        return {space["metadata"]["name"] for space in self.cluster.get("/api/v1/namespaces")["items"]}

    def component(self, name: str) -> dict[str, Any]:
        """The pods of ``control`` or ``query``."""
        return self.pods(NAMESPACE, f"app.kubernetes.io/component%3D{name}")

    def driver(self, process: str) -> Any:
        """The pod of a driver, as an attempt names it: ``{namespace}/{name}/{uid}``."""
        namespace, name, _ = process.split("/")
        return self.cluster.get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def executors(self, driver: Any) -> dict[str, Any]:
        """The pods that Spark has started for a driver's pod."""
        metadata = driver["metadata"]
        found = self.pods(metadata["namespace"], "spark-role%3Dexecutor")
        return {name: pod for name, pod in found.items() if name.startswith(f"{metadata['name']}-exec-")}

    def on_its_node(self, pod: Any) -> Pod:
        """What runs of it."""
        found = self.nodes[pod["spec"]["nodeName"]].pod(pod["metadata"]["namespace"], pod["metadata"]["name"])
        assert found is not None
        return found

    def kill(self, pod: Any) -> None:
        """Its processes end without a word, as when the node runs out of memory."""
        process = self.on_its_node(pod).containers[0].process
        assert process is not None
        process.kill()

    def leader(self) -> Any | None:
        """The pod of the control plane that supervises."""
        with self.connect() as connection:
            row = connection.execute(
                "SELECT host FROM leases WHERE name = 'leader' AND expires_at > clock_timestamp()"
            ).fetchone()
        return None if row is None else self.component("control").get(str(row[0]))

    @property
    def is_ready(self) -> bool:
        """All Deployments have what they are to have, and nothing more."""
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
        """It has no power any more; its provider strikes it off, and gives another one. Until the cluster has noticed,
        connections to services lead to its pods, too: that is waited for."""
        pods = [pod for pod in self.pods(NAMESPACE).values() if pod["spec"].get("nodeName") == name]
        lost = {pod["status"].get("podIP") for pod in pods}
        self.nodes[name].lose(end=True)
        self.add_node()
        self.cluster.delete(f"/api/v1/nodes/{name}")
        self.eventually(lambda: not lost & {address for address, _ in self.public.ready + self.lookups.ready})

    def eventually(self, holds: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        """Until it holds; what has gone wrong meanwhile is in the message."""
        try:
            eventually(holds, seconds)
        except AssertionError:
            raise AssertionError(f"did not come true; {self.described()}") from None

    def described(self) -> str:
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
    """The number of its latest committed epoch; 0: none yet."""
    found = client.applications.get(application).head
    return 0 if found is None else found.epoch


@contextmanager
def installation(folder: Path) -> Iterator[Installation]:
    """A cluster with nothing installed on it yet. Raises ``ServerUnavailable``."""
    helm.disable_logging()  # what it says of its work; what has gone wrong it raises
    with ExitStack() as stack:
        cluster = stack.enter_context(kubernetes(NODE_GONE_SECONDS))
        network = stack.enter_context(pod_network(cluster))
        server = stack.enter_context(postgresql())
        release = stack.enter_context(helm.Config(kubeconfig_path=cluster.kubeconfig(), namespace=NAMESPACE))
        shared = folder / "shared"
        shared.mkdir()
        made = Installation(cluster, network, server, shared, _images(folder), release)
        stack.callback(made.public.close)
        stack.callback(made.lookups.close)
        stack.callback(made.end_nodes)
        for _ in range(NODES):
            made.add_node()
        made.prepare()
        yield made


def _images(folder: Path) -> dict[str, Image]:
    """This checkout, under the names that the chart and applications ask for."""
    places = [Path(sys.prefix), ROOT]
    python = Path(sys.executable)
    environment = {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        # Here a container's user is who runs the tests, who may be root.
        "EPOCHAL_DRIVER_USER": str(os.geteuid()),
        **{name: os.environ[name] for name in ("JAVA_HOME", "SPARK_SUBMIT_OPTS") if name in os.environ},
    }
    scripted = folder / "scripted"
    scripted.mkdir()
    program = scripted / "python"
    # Builders of such an application have its image, too: what they do is as everywhere.
    program.write_text(
        f"""#!/bin/sh
if [ "$2" = epochal.driver ]; then shift 2; set -- -m tests.kubernetes.installed.scripted "$@"; fi
exec {python} "$@"
"""
    )
    program.chmod(0o755)
    of_drivers = {**environment, "PATH": f"{scripted}:{environment['PATH']}", "PYTHONPATH": str(ROOT)}
    return {
        f"{IMAGE}:{_version()}": Image(entrypoint=[str(COMMAND)], environment=environment, places=places),
        f"{IMAGE}:next": Image(entrypoint=[str(COMMAND)], environment=environment, places=places),
        SCRIPTED_IMAGE: Image(environment=of_drivers, places=[*places, scripted]),
    }


def _version() -> str:
    """Of the chart, which asks for the image of the same one."""
    return str(yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"])


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm merges files of values: maps name by name, all else is replaced."""
    both = {
        name: merged(below[name], value)
        if isinstance(value, Mapping) and isinstance(below.get(name), Mapping)
        else value
        for name, value in above.items()
    }
    return {**below, **both}
