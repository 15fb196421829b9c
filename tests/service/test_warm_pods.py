"""Warm pods of a control plane: assignment of work, acceptance of answers, removal.

An identity provider signs the pods' tokens; no cluster is needed.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from epochal.driver.http_catalog import HttpCatalog
from epochal.driver.orders import CONTROL_PLANES_VARIABLE, TOKEN_FILE_VARIABLE, DriverOrders
from epochal.driver.pool_client import Keeper, NotWanted
from epochal.driver.spare import Askers
from epochal.errors import ArtifactError, Conflict, EnvironmentProblem, PipelineError, Unauthenticated
from epochal.service.domain.executions import AttemptTicket
from epochal.service.domain.kubernetes.conditions import Phase, PodCondition
from epochal.service.domain.kubernetes.pod_identity import SPARE_PREFIX
from epochal.service.domain.kubernetes.pod_settings import KubernetesSettings
from epochal.service.domain.settings import Settings
from epochal.service.runtime.builder.kubernetes_builder import KubernetesBuilder
from epochal.service.runtime.kept_pods import PodDesk
from epochal.service.runtime.launchers.kubernetes.warm_pods import WarmPod
from epochal.wire.internal_api import LARGEST_ANSWER, TakenFor
from tests.kit.identity_provider import IdentityProvider, identity_provider
from tests.kit.waiting import eventually
from tests.service.conftest import Plane, StandInSupervisor, free_port, http_client, serving

NAMESPACE, ACCOUNT = "team-a", "epochal-builder"
CODE = b"from epochal import Pipeline\n"


@dataclass
class PodCluster:
    """A control plane, and an identity provider that signs tokens of pods in place of a cluster."""

    provider: IdentityProvider
    settings: Settings
    kept: PodDesk
    folder: Path
    plane: Plane
    made: int = 0

    def token(self, name: str, uid: str, account: str = ACCOUNT) -> str:
        own = {"namespace": NAMESPACE, "pod": {"name": name, "uid": uid}, "serviceaccount": {"name": account}}
        return self.provider.token(sub=f"system:serviceaccount:{NAMESPACE}:{account}", **{"kubernetes.io": own})

    def token_file(self, name: str, uid: str) -> Path:
        self.made += 1
        file = self.folder / f"token-{self.made}"
        file.write_text(self.token(name, uid))
        return file

    def keeper(self, name: str, as_pod: str = "", patience_seconds: float = 30.0) -> Keeper:
        """A client of the pod ``name`` with the token of ``as_pod``, which may be another pod. The uid is the pod's
        name."""
        own = as_pod or name
        file = self.token_file(own, f"uid-{own}")
        return Keeper(self.settings.internal_url, name, file, patience_seconds, others_seconds=0.3)

    def pod(self, name: str) -> Keeper:
        self.kept.expect(name)
        self.kept.identify(name, f"{NAMESPACE}/{name}/uid-{name}")
        return self.keeper(name)


@pytest.fixture
def cluster(settings: Settings, tmp_path: Path) -> Iterator[PodCluster]:
    with identity_provider() as provider:
        issuer = {"issuer": provider.url, "keys": f"{provider.url}/keys", "authority": None, "token": None}
        configuration = {
            "issuer": issuer,
            "namespaces": {"default": NAMESPACE},
            "image": "epochal:1",
            "start_seconds": 60,
        }
        kubernetes = KubernetesSettings.model_validate(configuration)
        settings = settings.model_copy(update={"kubernetes": kubernetes})
        supervisor = StandInSupervisor()
        with serving(settings, supervisor) as (control, token), http_client(settings, token) as client:
            plane = Plane(control, client, settings, supervisor, [])
            desk = PodDesk.of(settings.pods_directory)
            desk.open()
            yield PodCluster(provider, settings, desk, tmp_path, plane)
            desk.close()


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def give_work(cluster: PodCluster, name: str, work: bytes = b"{}") -> None:
    code = cluster.folder / "flights.py"
    code.write_bytes(CODE)
    cluster.kept.give(name, work, {sha256_of(CODE): code})


def test_pod_waits_for_work_and_its_first_answer_is_accepted(cluster: PodCluster) -> None:
    keeper = cluster.pod("one")
    assert keeper.work(False, 0.0) is None and not cluster.kept.is_ready("one")
    assert keeper.work(True, 0.0) is None and cluster.kept.is_ready("one") and not cluster.kept.has_begun("one")
    threading.Timer(0.3, lambda: give_work(cluster, "one", b'{"do": 1}')).start()
    assert keeper.work(True, 10.0) == b'{"do": 1}' and cluster.kept.has_begun("one")
    assert keeper.work(True, 0.0) == b'{"do": 1}'  # repeated when the answer was lost
    assert keeper.artifact(sha256_of(CODE)) == CODE
    assert cluster.kept.answer("one") is None
    keeper.answer(b"first")
    keeper.answer(b"second")
    assert cluster.kept.answer("one") == b"first"


def test_artifact_stays_available_to_the_pod_when_its_source_is_removed(cluster: PodCluster) -> None:
    keeper = cluster.pod("one")
    give_work(cluster, "one")
    (cluster.folder / "flights.py").unlink()
    assert keeper.artifact(sha256_of(CODE)) == CODE


def test_pod_cannot_read_or_answer_the_work_of_another_pod(cluster: PodCluster) -> None:
    cluster.pod("mine"), cluster.pod("yours")
    give_work(cluster, "yours")
    stranger = cluster.keeper("yours", as_pod="mine")
    for call in (
        lambda: stranger.work(True, 0.0),
        stranger.check_wanted,
        lambda: stranger.artifact(sha256_of(CODE)),
        lambda: stranger.answer(b"{}"),
    ):
        with pytest.raises(NotWanted, match="401"):
            call()
    assert cluster.kept.answer("yours") is None and not cluster.kept.is_ready("yours")
    # A later pod of the same name is refused too, as are tokens that no cluster has issued.
    with http_client(cluster.settings, cluster.token("yours", "another-uid")) as client:
        assert client.get("/internal/v1/pods/yours/work").status_code == 401
    for token in (None, "epk_1_nothing", cluster.provider.token(sub="ada")):
        with http_client(cluster.settings, token) as client:
            assert client.get("/internal/v1/pods/yours/work").status_code == 401


def test_token_is_refused_after_the_work_of_the_pod(cluster: PodCluster) -> None:
    keeper = cluster.pod("one")
    give_work(cluster, "one")
    keeper.check_wanted()
    cluster.kept.forget("one")
    for call in (lambda: keeper.work(True, 0.0), keeper.check_wanted, lambda: keeper.answer(b"{}")):
        with pytest.raises(NotWanted, match="404"):
            call()
    assert not (cluster.settings.pods_directory / "one").exists()
    with http_client(cluster.settings, cluster.token("one", "uid-one")) as client:
        for path in ("/v1/applications", "/v1/tokens", "/v1/artifacts"):
            assert client.get(path).status_code == 401
        orders = client.post(f"/internal/v1/executions/{'0' * 32}/attempts/1/orders", json={"token_sha256": "0" * 64})
        assert orders.status_code == 401


def test_paths_outside_the_folder_of_the_pod_are_refused(cluster: PodCluster) -> None:
    cluster.pod("one")
    (cluster.settings.pods_directory / "work").write_text("belongs to no pod")
    give_work(cluster, "one")
    with http_client(cluster.settings, cluster.token("one", "uid-one")) as client:
        for path in ("one/artifacts/..%2f..%2fpod", "one%2f..%2f..%2fadmin.token/work", "../pods/work", "%2e%2e/work"):
            assert client.get(f"/internal/v1/pods/{path}").status_code in (404, 422), path
        assert client.get(f"/internal/v1/pods/one/artifacts/{'0' * 64}").status_code == 404


def test_too_large_an_answer_is_refused(cluster: PodCluster) -> None:
    cluster.pod("one")
    with http_client(cluster.settings, cluster.token("one", "uid-one")) as client:
        answer = client.put("/internal/v1/pods/one/answer", content=bytes(LARGEST_ANSWER + 1))
        assert answer.status_code == 413
    assert cluster.kept.answer("one") is None


def test_pod_that_starts_before_its_uid_is_stored_retries(cluster: PodCluster) -> None:
    cluster.kept.expect("one")
    threading.Timer(0.7, lambda: cluster.kept.identify("one", f"{NAMESPACE}/one/uid-one")).start()
    cluster.keeper("one").check_wanted()


def test_pod_ends_when_its_control_plane_has_terminated(cluster: PodCluster, tmp_path: Path) -> None:
    keeper = Keeper("http://127.0.0.1:1", "one", cluster.token_file("one", "uid-one"), patience_seconds=0.2)
    with pytest.raises(NotWanted, match="has answered for"):
        keeper.work(True, 0.0)
    cluster.pod("one")
    cluster.kept.clear("")  # as a control plane does when it starts
    with pytest.raises(NotWanted, match="404"):
        cluster.keeper("one").work(True, 0.0)


SPARE = f"{SPARE_PREFIX}1"


def spare(cluster: PodCluster, name: str = SPARE, kept: bool = True) -> Askers:
    """A spare's pod that requests the attempt it was taken for."""
    if kept:
        cluster.kept.expect(name)
        cluster.kept.identify(name, f"{NAMESPACE}/{name}/uid-{name}")
    file = cluster.folder / f"token-{name}"
    file.write_text(cluster.token(name, f"uid-{name}", "epochal-driver"))
    return Askers(name, environment(cluster, file), patience_seconds=0.5)


def environment(cluster: PodCluster, token_file: Path) -> dict[str, str]:
    return {CONTROL_PLANES_VARIABLE: cluster.settings.internal_url, TOKEN_FILE_VARIABLE: str(token_file)}


def attempt(cluster: PodCluster) -> AttemptTicket:
    execution = cluster.plane.application()["execution"]
    return cluster.plane.control.ledger.new_attempt(execution)


def test_spare_receives_its_attempt_and_orders_once_stored(cluster: PodCluster) -> None:
    askers, ticket = spare(cluster), attempt(cluster)
    assert askers.attempt(True, 0.0) is None and cluster.kept.is_ready(SPARE)
    assert askers.control_planes == [cluster.settings.internal_url]
    cluster.kept.take_for_driver(SPARE)
    assert askers.attempt(True, 0.0) is None  # taken for an attempt, but without orders
    reference = f"{NAMESPACE}/{SPARE}/uid-{SPARE}"
    threading.Timer(
        0.5, lambda: cluster.plane.control.ledger.launched(ticket.execution, ticket.attempt, reference)
    ).start()
    taken = askers.attempt(True, 10.0)
    assert taken == TakenFor(execution=ticket.execution, attempt=ticket.attempt)
    # A control plane that does not manage the pod answers the same.
    cluster.kept.forget(SPARE)
    assert askers.attempt(True, 0.0) == taken
    own = environment(cluster, cluster.folder / f"token-{SPARE}")
    orders = DriverOrders.model_validate_json(_fetched(f"{taken.execution}-{taken.attempt}", own))
    assert (orders.execution, orders.attempt, orders.application) == (ticket.execution, ticket.attempt, "flights")
    # The orders are refused to another spare that was taken for the same attempt, and it ends.
    other = f"{SPARE_PREFIX}2"
    with pytest.raises(NotWanted):
        _until_unwanted(spare(cluster, other, kept=False))
    with pytest.raises(Unauthenticated):
        _fetched(f"{taken.execution}-{taken.attempt}", environment(cluster, cluster.folder / f"token-{other}"))


def test_spare_ends_when_no_control_plane_keeps_it(cluster: PodCluster) -> None:
    askers = spare(cluster)
    assert askers.attempt(False, 0.0) is None and not cluster.kept.is_ready(SPARE)
    cluster.kept.forget(SPARE)
    with pytest.raises(NotWanted, match="No control plane has kept this pod"):
        _until_unwanted(askers)


def test_pod_cannot_read_the_attempt_of_another_pod(cluster: PodCluster) -> None:
    spare(cluster)
    with http_client(cluster.settings, cluster.token("other", "uid-other", "epochal-driver")) as client:
        assert client.get(f"/internal/v1/pods/{SPARE}/attempt").status_code == 401
        assert client.get("/internal/v1/pods/other/attempt").status_code == 404


def _until_unwanted(askers: Askers) -> None:
    for _ in range(20):
        askers.attempt(True, 0.0)


def _fetched(name: str, own: dict[str, str]) -> bytes:
    execution, _, number = name.rpartition("-")
    catalog = HttpCatalog(
        own[CONTROL_PLANES_VARIABLE].split(),
        Path(own[TOKEN_FILE_VARIABLE]).read_text(),
        execution,
        int(number),
        patience_seconds=5.0,
    )
    return catalog.orders("epd_its_own").model_dump_json().encode()


@dataclass
class ProcessPods:
    """Runs the pods' program as processes of this machine, in place of a cluster."""

    cluster: PodCluster
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    condition_of_all: PodCondition | None = None
    kept_warm: list[WarmPod] = field(default_factory=list)

    def open(self) -> None: ...

    def close(self) -> None: ...

    def take(self, namespace: str) -> WarmPod | None:
        assert namespace == NAMESPACE
        return self.kept_warm.pop() if self.kept_warm else None

    def make(self, namespace: str, spark: Any, sized: bool, warm: bool = False) -> WarmPod:
        name = f"builder-{len(self.processes)}"
        home = self.cluster.folder / name
        home.mkdir()
        self.cluster.kept.expect(name)
        environment = {
            **os.environ,
            "HOME": str(home),
            CONTROL_PLANES_VARIABLE: self.cluster.settings.internal_url,
            TOKEN_FILE_VARIABLE: str(self.cluster.token_file(name, f"uid-{name}")),
        }
        command = [sys.executable, "-m", "epochal.service.runtime.builder.pod", name, "0"]
        self.processes.append(subprocess.Popen(command, env=environment, start_new_session=True))
        self.cluster.kept.identify(name, f"{NAMESPACE}/{name}/uid-{name}")
        return WarmPod(NAMESPACE, name, f"uid-{name}", warm)

    def condition(self, pod: WarmPod) -> PodCondition:
        return self.condition_of_all or PodCondition(Phase.RUNNING)

    def remove(self, pod: WarmPod) -> None:
        self.cluster.kept.forget(pod.name)


@pytest.fixture
def pods(cluster: PodCluster) -> Iterator[ProcessPods]:
    made = ProcessPods(cluster)
    yield made
    for process in made.processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


@pytest.fixture
def builder(cluster: PodCluster, pods: ProcessPods) -> KubernetesBuilder:
    assert cluster.settings.kubernetes is not None
    return KubernetesBuilder(cluster.settings.kubernetes, pods, cluster.kept)  # type: ignore[arg-type]


def pipeline(cluster: PodCluster, code: str) -> Path:
    path = cluster.folder / "flights.py"
    path.write_text(code)
    return path


PIPELINE = """
from epochal import Pipeline
from epochal.connectors import files


def build() -> Pipeline:
    pipeline = Pipeline("flights")
    rows = pipeline.read("rows", files.source("/in/*", format="json", schema="carrier string"))
    rows.key_by("carrier").aggregate("counts", n="count(*)").write("out", files.sink("/out"))
    return pipeline
"""


@pytest.mark.by_turns(2)
def test_pipeline_is_built_in_a_pod_that_ends_afterwards(
    cluster: PodCluster, builder: KubernetesBuilder, pods: Any
) -> None:
    graph = builder.describe("default", pipeline(cluster, PIPELINE), {})
    assert (graph.name, dict(graph.sinks)) == ("flights", {"out": "files:/out"})
    assert pods.processes[0].wait(60) == 0
    assert list(cluster.settings.pods_directory.iterdir()) == []


@pytest.mark.by_turns(2)
def test_code_that_exits_or_raises_is_reported_to_the_author(cluster: PodCluster, builder: KubernetesBuilder) -> None:
    with pytest.raises(PipelineError, match="ended its process"):
        builder.describe("default", pipeline(cluster, "import os; os._exit(9)"), {})
    with pytest.raises(ArtifactError, match="no such carrier"):
        builder.describe("default", pipeline(cluster, "raise ValueError('no such carrier')"), {})


@pytest.mark.by_turns(2)
def test_cancelled_build_ends_its_pod(cluster: PodCluster, builder: KubernetesBuilder, pods: ProcessPods) -> None:
    code = pipeline(cluster, "import time; time.sleep(600)")

    def meanwhile() -> None:
        if cluster.kept.has_begun("builder-0"):
            raise Conflict("cancelled")

    with pytest.raises(Conflict, match="cancelled"):
        builder.rekey("default", code, {}, _configuration(), _rekey_of(cluster), meanwhile)
    assert pods.processes[0].wait(60) == 0


def _configuration() -> Any:
    from epochal.contracts.configuration import Configuration

    return Configuration()


def _rekey_of(cluster: PodCluster) -> Any:
    from epochal.contracts.catalog import ManifestReference
    from epochal.contracts.identity import EpochKey
    from epochal.service.domain.building import RekeyOf

    head = ManifestReference(branch="b", epoch=1, path="b/manifests/1.json", sha256="0" * 64)
    return RekeyOf(application="flights", store=cluster.settings.store_url, head=head, at=EpochKey("c", 2), by="ada")


def test_pod_that_ends_or_does_not_start_is_an_error_with_its_cause(
    cluster: PodCluster, builder: KubernetesBuilder, pods: ProcessPods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessPods, "make", _never_begins)
    pods.condition_of_all = PodCondition(Phase.ENDED, "The image 'missing/image:1' cannot be pulled.")
    with pytest.raises(EnvironmentProblem, match=r"has ended.*missing/image:1"):
        builder.describe("default", pipeline(cluster, PIPELINE), {})
    pods.condition_of_all = PodCondition(Phase.ENDED, "The builder was killed for its memory (OOMKilled): ..", -9)
    with pytest.raises(PipelineError, match="OOMKilled"):
        builder.describe("default", pipeline(cluster, PIPELINE), {})
    monkeypatch.setattr(builder, "_settings", builder._settings.model_copy(update={"start_seconds": 0.2}))
    pods.condition_of_all = PodCondition(Phase.WAITING, "No node takes the pod.")
    with pytest.raises(EnvironmentProblem, match=r"has not begun within 0.2 s. No node takes the pod"):
        builder.describe("default", pipeline(cluster, PIPELINE), {})
    assert list(cluster.settings.pods_directory.iterdir()) == []


def _never_begins(pods: ProcessPods, spark: Any, sized: bool, warm: bool = False) -> WarmPod:
    pods.cluster.kept.expect("none")
    pods.cluster.kept.identify("none", f"{NAMESPACE}/none/uid-none")
    return WarmPod(NAMESPACE, "none", "uid-none", warm)


@pytest.mark.by_turns(2)
def test_warm_pod_that_does_not_answer_is_replaced(
    cluster: PodCluster, builder: KubernetesBuilder, pods: ProcessPods
) -> None:
    dead = _never_begins(pods, {}, False, warm=True)
    pods.kept_warm.append(dead)
    lost = PodCondition(Phase.ENDED, "The node of the pod is lost.")
    usual = pods.condition
    pods.condition = lambda pod: lost if pod is dead else usual(pod)  # type: ignore[method-assign]
    assert builder.describe("default", pipeline(cluster, PIPELINE), {}).name == "flights"
    assert len(pods.processes) == 1
    eventually(lambda: list(cluster.settings.pods_directory.iterdir()) == [], 10)


class _Balancer(socketserver.BaseRequestHandler):
    """Forwards connections alternately to a control plane without the pod and to the one that has it, as a service
    of a cluster does."""

    def handle(self) -> None:
        balancer: Any = self.server
        balancer.turn += 1
        target = balancer.targets[balancer.turn % len(balancer.targets)]
        with socket.create_connection(("127.0.0.1", target)) as there:
            back = threading.Thread(target=_pump, args=[there, self.request], daemon=True)
            back.start()
            _pump(self.request, there)
            back.join(30)


class _Balancing(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(1 << 16):
            sink.sendall(part)
        sink.shutdown(socket.SHUT_WR)


def test_pod_finds_its_control_plane_behind_a_load_balancer(
    cluster: PodCluster, settings: Settings, tmp_path: Path
) -> None:
    kubernetes = cluster.settings.kubernetes
    other = settings.model_copy(update={"data": tmp_path / "other", "port": free_port(), "kubernetes": kubernetes})
    cluster.pod("one")
    with serving(other), _Balancing(("127.0.0.1", 0), _Balancer) as balancer:
        balancer.turn, balancer.targets = 0, (cluster.settings.port, other.port, other.port)  # type: ignore[attr-defined]
        threading.Thread(target=balancer.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{balancer.server_address[1]}"
        keeper = Keeper(url, "one", cluster.token_file("one", "uid-one"))
        assert keeper.work(True, 0.0) is None
        give_work(cluster, "one", b"found")
        assert keeper.work(True, 0.0) == b"found"
        keeper.answer(b"{}")
        balancer.shutdown()
    assert cluster.kept.answer("one") == b"{}"
