"""Pods that a control plane keeps for work: who gets which work, whose answer is taken, and what ends them. A real
issuer signs their tokens; nothing of a cluster is needed beside it."""

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
from epochal.driver.pool_client import PodClient, PodNotNeeded
from epochal.driver.spare import AttemptClient
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
class House:
    """A control plane, and a cluster as far as it is needed: what signs tokens of pods."""

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

    def keeper(self, name: str, as_pod: str = "", patience_seconds: float = 30.0) -> PodClient:
        """As the pod ``as_pod`` calls, which may be another one. Its uid is its name."""
        own = as_pod or name
        file = self.token_file(own, f"uid-{own}")
        return PodClient(self.settings.internal_url, name, file, patience_seconds, others_seconds=0.3)

    def pod(self, name: str) -> PodClient:
        self.kept.expect(name)
        self.kept.identify(name, f"{NAMESPACE}/{name}/uid-{name}")
        return self.keeper(name)


@pytest.fixture
def house(settings: Settings, tmp_path: Path) -> Iterator[House]:
    with identity_provider() as provider:
        issuer = {"issuer": provider.url, "keys": f"{provider.url}/keys", "authority": None, "token": None}
        said = {"issuer": issuer, "namespaces": {"default": NAMESPACE}, "image": "epochal:1", "start_seconds": 60}
        kubernetes = KubernetesSettings.model_validate(said)
        settings = settings.model_copy(update={"kubernetes": kubernetes})
        supervisor = StandInSupervisor()
        with serving(settings, supervisor) as (control, token), http_client(settings, token) as client:
            plane = Plane(control, client, settings, supervisor, [])
            desk = PodDesk.of(settings.pods_directory)
            desk.open()
            yield House(provider, settings, desk, tmp_path, plane)
            desk.close()


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def given(house: House, name: str, work: bytes = b"{}") -> None:
    code = house.folder / "flights.py"
    code.write_bytes(CODE)
    house.kept.give(name, work, {sha256_of(CODE): code})


def test_a_pod_waits_for_its_work_and_its_first_answer_counts(house: House) -> None:
    keeper = house.pod("one")
    assert keeper.work(False, 0.0) is None and not house.kept.is_ready("one")
    assert keeper.work(True, 0.0) is None and house.kept.is_ready("one") and not house.kept.has_begun("one")
    threading.Timer(0.3, lambda: given(house, "one", b'{"do": 1}')).start()
    assert keeper.work(True, 10.0) == b'{"do": 1}' and house.kept.has_begun("one")
    assert keeper.work(True, 0.0) == b'{"do": 1}'  # asked again, since the answer was lost
    assert keeper.artifact(sha256_of(CODE)) == CODE
    assert house.kept.answer("one") is None
    keeper.answer(b"first")
    keeper.answer(b"second")
    assert house.kept.answer("one") == b"first"


def test_code_stays_for_the_pod_when_the_copy_that_it_is_of_is_removed(house: House) -> None:
    keeper = house.pod("one")
    given(house, "one")
    (house.folder / "flights.py").unlink()
    assert keeper.artifact(sha256_of(CODE)) == CODE


def test_nobody_gets_anothers_work_or_answers_in_its_place(house: House) -> None:
    house.pod("mine"), house.pod("yours")
    given(house, "yours")
    stranger = house.keeper("yours", as_pod="mine")
    for call in (
        lambda: stranger.work(True, 0.0),
        stranger.check_needed,
        lambda: stranger.artifact(sha256_of(CODE)),
        lambda: stranger.answer(b"{}"),
    ):
        with pytest.raises(PodNotNeeded, match="401"):
            call()
    assert house.kept.answer("yours") is None and not house.kept.is_ready("yours")
    # Nor does a later pod of the same name, or one that no cluster has made.
    with http_client(house.settings, house.token("yours", "another-uid")) as client:
        assert client.get("/internal/v1/pods/yours/work").status_code == 401
    for token in (None, "epk_1_nothing", house.provider.token(sub="ada")):
        with http_client(house.settings, token) as client:
            assert client.get("/internal/v1/pods/yours/work").status_code == 401


def test_a_token_is_worth_nothing_after_the_pods_work(house: House) -> None:
    keeper = house.pod("one")
    given(house, "one")
    keeper.check_needed()
    house.kept.forget("one")
    for call in (lambda: keeper.work(True, 0.0), keeper.check_needed, lambda: keeper.answer(b"{}")):
        with pytest.raises(PodNotNeeded, match="404"):
            call()
    assert not (house.settings.pods_directory / "one").exists()
    with http_client(house.settings, house.token("one", "uid-one")) as client:
        for path in ("/v1/applications", "/v1/tokens", "/v1/artifacts"):
            assert client.get(path).status_code == 401
        orders = client.post(f"/internal/v1/executions/{'0' * 32}/attempts/1/orders", json={"token_sha256": "0" * 64})
        assert orders.status_code == 401


def test_no_path_leads_out_of_the_pods_folder(house: House) -> None:
    house.pod("one")
    (house.settings.pods_directory / "work").write_text("of nobody")
    given(house, "one")
    with http_client(house.settings, house.token("one", "uid-one")) as client:
        for path in ("one/artifacts/..%2f..%2fpod", "one%2f..%2f..%2fadmin.token/work", "../pods/work", "%2e%2e/work"):
            assert client.get(f"/internal/v1/pods/{path}").status_code in (404, 422), path
        assert client.get(f"/internal/v1/pods/one/artifacts/{'0' * 64}").status_code == 404


def test_an_answer_without_end_is_refused(house: House) -> None:
    house.pod("one")
    with http_client(house.settings, house.token("one", "uid-one")) as client:
        answer = client.put("/internal/v1/pods/one/answer", content=bytes(LARGEST_ANSWER + 1))
        assert answer.status_code == 413
    assert house.kept.answer("one") is None


def test_a_pod_that_is_quicker_than_who_made_it_asks_again(house: House) -> None:
    house.kept.expect("one")
    threading.Timer(0.7, lambda: house.kept.identify("one", f"{NAMESPACE}/one/uid-one")).start()
    house.keeper("one").check_needed()


def test_a_pod_whose_control_plane_is_gone_is_wanted_by_nobody(house: House, tmp_path: Path) -> None:
    keeper = PodClient("http://127.0.0.1:1", "one", house.token_file("one", "uid-one"), patience_seconds=0.2)
    with pytest.raises(PodNotNeeded, match="has answered for"):
        keeper.work(True, 0.0)
    house.pod("one")
    house.kept.clear("")  # as a control plane that starts does
    with pytest.raises(PodNotNeeded, match="404"):
        house.keeper("one").work(True, 0.0)


SPARE = f"{SPARE_PREFIX}1"


def spare(house: House, name: str = SPARE, kept: bool = True) -> AttemptClient:
    """A spare's pod, as it asks whose driver it is."""
    if kept:
        house.kept.expect(name)
        house.kept.identify(name, f"{NAMESPACE}/{name}/uid-{name}")
    file = house.folder / f"token-{name}"
    file.write_text(house.token(name, f"uid-{name}", "epochal-driver"))
    return AttemptClient(name, environment(house, file), patience_seconds=0.5)


def environment(house: House, token_file: Path) -> dict[str, str]:
    return {CONTROL_PLANES_VARIABLE: house.settings.internal_url, TOKEN_FILE_VARIABLE: str(token_file)}


def attempt(house: House) -> AttemptTicket:
    execution = house.plane.application()["execution"]
    return house.plane.control.ledger.new_attempt(execution)


def test_a_spare_learns_whose_driver_it_is_when_that_is_written_down_and_has_its_orders(house: House) -> None:
    askers, ticket = spare(house), attempt(house)
    assert askers.attempt(True, 0.0) is None and house.kept.is_ready(SPARE)
    assert askers.control_planes == [house.settings.internal_url]
    house.kept.take_for_driver(SPARE)
    assert askers.attempt(True, 0.0) is None  # it has the name of an attempt, and no orders yet
    reference = f"{NAMESPACE}/{SPARE}/uid-{SPARE}"
    threading.Timer(
        0.5, lambda: house.plane.control.ledger.launched(ticket.execution, ticket.attempt, reference)
    ).start()
    taken = askers.attempt(True, 10.0)
    assert taken == TakenFor(execution=ticket.execution, attempt=ticket.attempt)
    # Also of a control plane that has never kept it.
    house.kept.forget(SPARE)
    assert askers.attempt(True, 0.0) == taken
    own = environment(house, house.folder / f"token-{SPARE}")
    orders = DriverOrders.model_validate_json(_fetched(f"{taken.execution}-{taken.attempt}", own))
    assert (orders.execution, orders.attempt, orders.application) == (ticket.execution, ticket.attempt, "flights")
    # Nobody else has them: another spare, which was taken for the same attempt, ends.
    other = f"{SPARE_PREFIX}2"
    with pytest.raises(PodNotNeeded):
        _until_unwanted(spare(house, other, kept=False))
    with pytest.raises(Unauthenticated):
        _fetched(f"{taken.execution}-{taken.attempt}", environment(house, house.folder / f"token-{other}"))


def test_a_spare_that_nobody_keeps_any_more_ends(house: House) -> None:
    askers = spare(house)
    assert askers.attempt(False, 0.0) is None and not house.kept.is_ready(SPARE)
    house.kept.forget(SPARE)
    with pytest.raises(PodNotNeeded, match="No control plane has supervised this pod"):
        _until_unwanted(askers)


def test_whose_driver_another_pod_is_is_not_said(house: House) -> None:
    spare(house)
    with http_client(house.settings, house.token("other", "uid-other", "epochal-driver")) as client:
        assert client.get(f"/internal/v1/pods/{SPARE}/attempt").status_code == 401
        assert client.get("/internal/v1/pods/other/attempt").status_code == 404


def _until_unwanted(askers: AttemptClient) -> None:
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
    """In the place of a cluster: the pods' program, as processes of this machine."""

    house: House
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
        home = self.house.folder / name
        home.mkdir()
        self.house.kept.expect(name)
        environment = {
            **os.environ,
            "HOME": str(home),
            CONTROL_PLANES_VARIABLE: self.house.settings.internal_url,
            TOKEN_FILE_VARIABLE: str(self.house.token_file(name, f"uid-{name}")),
        }
        command = [sys.executable, "-m", "epochal.service.runtime.builder.pod", name, "0"]
        self.processes.append(subprocess.Popen(command, env=environment, start_new_session=True))
        self.house.kept.identify(name, f"{NAMESPACE}/{name}/uid-{name}")
        return WarmPod(NAMESPACE, name, f"uid-{name}", warm)

    def condition(self, pod: WarmPod) -> PodCondition:
        return self.condition_of_all or PodCondition(Phase.RUNNING)

    def remove(self, pod: WarmPod) -> None:
        self.house.kept.forget(pod.name)


@pytest.fixture
def pods(house: House) -> Iterator[ProcessPods]:
    made = ProcessPods(house)
    yield made
    for process in made.processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


@pytest.fixture
def builder(house: House, pods: ProcessPods) -> KubernetesBuilder:
    assert house.settings.kubernetes is not None
    return KubernetesBuilder(house.settings.kubernetes, pods, house.kept)  # type: ignore[arg-type]


def pipeline(house: House, code: str) -> Path:
    path = house.folder / "flights.py"
    path.write_text(code)
    return path


WORDS = """
from epochal import Pipeline
from epochal.connectors import files


def build() -> Pipeline:
    pipeline = Pipeline("flights")
    rows = pipeline.read("rows", files.source("/in/*", format="json", schema="carrier string"))
    rows.key_by("carrier").aggregate("counts", n="count(*)").write("out", files.sink("/out"))
    return pipeline
"""


@pytest.mark.by_turns(2)
def test_a_pipeline_is_built_by_another_process_which_ends(house: House, builder: KubernetesBuilder, pods: Any) -> None:
    graph = builder.describe("default", pipeline(house, WORDS), {})
    assert (graph.name, dict(graph.sinks)) == ("flights", {"out": "files:/out"})
    assert pods.processes[0].wait(60) == 0
    assert list(house.settings.pods_directory.iterdir()) == []


@pytest.mark.by_turns(2)
def test_code_that_ends_its_process_is_told_so_and_its_message_is_the_authors(
    house: House, builder: KubernetesBuilder
) -> None:
    with pytest.raises(PipelineError, match="ended its process"):
        builder.describe("default", pipeline(house, "import os; os._exit(9)"), {})
    with pytest.raises(ArtifactError, match="no such carrier"):
        builder.describe("default", pipeline(house, "raise ValueError('no such carrier')"), {})


@pytest.mark.by_turns(2)
def test_who_does_not_wait_any_more_ends_the_pod(house: House, builder: KubernetesBuilder, pods: ProcessPods) -> None:
    code = pipeline(house, "import time; time.sleep(600)")

    def meanwhile() -> None:
        if house.kept.has_begun("builder-0"):
            raise Conflict("cancelled")

    with pytest.raises(Conflict, match="cancelled"):
        builder.rekey("default", code, {}, _configuration(), _rekey_of(house), meanwhile)
    assert pods.processes[0].wait(60) == 0


def _configuration() -> Any:
    from epochal.contracts.configuration import Configuration

    return Configuration()


def _rekey_of(house: House) -> Any:
    from epochal.contracts.catalog import ManifestReference
    from epochal.contracts.identity import EpochKey
    from epochal.service.domain.building import RekeyOf

    head = ManifestReference(branch="b", epoch=1, path="b/manifests/1.json", sha256="0" * 64)
    return RekeyOf(application="flights", store=house.settings.store_url, head=head, at=EpochKey("c", 2), by="ada")


def test_a_pod_that_ends_or_does_not_begin_is_an_error_with_its_cause(
    house: House, builder: KubernetesBuilder, pods: ProcessPods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessPods, "make", _never_begins)
    pods.condition_of_all = PodCondition(Phase.ENDED, "The image 'nobody/has:it' cannot be pulled.")
    with pytest.raises(EnvironmentProblem, match=r"has ended.*nobody/has:it"):
        builder.describe("default", pipeline(house, WORDS), {})
    pods.condition_of_all = PodCondition(Phase.ENDED, "The builder was killed for its memory (OOMKilled): ..", -9)
    with pytest.raises(PipelineError, match="OOMKilled"):
        builder.describe("default", pipeline(house, WORDS), {})
    monkeypatch.setattr(builder, "_settings", builder._settings.model_copy(update={"start_seconds": 0.2}))
    pods.condition_of_all = PodCondition(Phase.WAITING, "No node takes the pod.")
    with pytest.raises(EnvironmentProblem, match=r"has not started within 0.2 s. No node takes the pod"):
        builder.describe("default", pipeline(house, WORDS), {})
    assert list(house.settings.pods_directory.iterdir()) == []


def _never_begins(pods: ProcessPods, spark: Any, sized: bool, warm: bool = False) -> WarmPod:
    pods.house.kept.expect("none")
    pods.house.kept.identify("none", f"{NAMESPACE}/none/uid-none")
    return WarmPod(NAMESPACE, "none", "uid-none", warm)


@pytest.mark.by_turns(2)
def test_a_kept_pod_that_does_not_answer_is_replaced(
    house: House, builder: KubernetesBuilder, pods: ProcessPods
) -> None:
    dead = _never_begins(pods, {}, False, warm=True)
    pods.kept_warm.append(dead)
    gone = PodCondition(Phase.ENDED, "The node of the pod is lost.")
    usual = pods.condition
    pods.condition = lambda pod: gone if pod is dead else usual(pod)  # type: ignore[method-assign]
    assert builder.describe("default", pipeline(house, WORDS), {}).name == "flights"
    assert len(pods.processes) == 1
    eventually(lambda: list(house.settings.pods_directory.iterdir()) == [], 10)


class _Balancer(socketserver.BaseRequestHandler):
    """In turn to somebody who knows no pod and to the control plane, as a service of a cluster does by connection."""

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


def test_a_pod_finds_who_keeps_it_behind_an_address_of_several_control_planes(
    house: House, settings: Settings, tmp_path: Path
) -> None:
    kubernetes = house.settings.kubernetes
    other = settings.model_copy(update={"data": tmp_path / "other", "port": free_port(), "kubernetes": kubernetes})
    house.pod("one")
    with serving(other), _Balancing(("127.0.0.1", 0), _Balancer) as balancer:
        balancer.turn, balancer.targets = 0, (house.settings.port, other.port, other.port)  # type: ignore[attr-defined]
        threading.Thread(target=balancer.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{balancer.server_address[1]}"
        keeper = PodClient(url, "one", house.token_file("one", "uid-one"))
        assert keeper.work(True, 0.0) is None
        given(house, "one", b"found")
        assert keeper.work(True, 0.0) == b"found"
        keeper.answer(b"{}")
        balancer.shutdown()
    assert house.kept.answer("one") == b"{}"
