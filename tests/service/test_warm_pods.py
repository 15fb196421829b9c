"""Warm pods of a control plane: assignment of work, acceptance of answers, removal.

An identity provider signs the pods' tokens; no cluster is needed.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from epochal.driver.http_catalog import HttpCatalog
from epochal.driver.orders import CONTROL_PLANES_VARIABLE, TOKEN_FILE_VARIABLE, DriverOrders
from epochal.driver.pool_client import PodClient, PodNotNeeded
from epochal.driver.spare import AttemptClient
from epochal.errors import Unauthenticated
from epochal.service.domain.executions import AttemptTicket
from epochal.service.domain.kubernetes.pod_identity import SPARE_PREFIX
from epochal.service.domain.settings import Settings
from epochal.wire.internal_api import LARGEST_ANSWER, TakenFor
from tests.service.conftest import free_port, http_client, serving
from tests.service.pod_clusters import CODE, NAMESPACE, PodCluster, give_work, sha256_of
from tests.service.pod_clusters import cluster as cluster


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
        stranger.check_needed,
        lambda: stranger.artifact(sha256_of(CODE)),
        lambda: stranger.answer(b"{}"),
    ):
        with pytest.raises(PodNotNeeded, match="401"):
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
    keeper.check_needed()
    cluster.kept.forget("one")
    for call in (lambda: keeper.work(True, 0.0), keeper.check_needed, lambda: keeper.answer(b"{}")):
        with pytest.raises(PodNotNeeded, match="404"):
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
    cluster.keeper("one").check_needed()


def test_pod_ends_when_its_control_plane_has_terminated(cluster: PodCluster, tmp_path: Path) -> None:
    keeper = PodClient("http://127.0.0.1:1", "one", cluster.token_file("one", "uid-one"), patience_seconds=0.2)
    with pytest.raises(PodNotNeeded, match="has answered for"):
        keeper.work(True, 0.0)
    cluster.pod("one")
    cluster.kept.clear("")  # as a control plane does when it starts
    with pytest.raises(PodNotNeeded, match="404"):
        cluster.keeper("one").work(True, 0.0)


SPARE = f"{SPARE_PREFIX}1"


def spare(cluster: PodCluster, name: str = SPARE, kept: bool = True) -> AttemptClient:
    """A spare's pod that requests the attempt it was taken for."""
    if kept:
        cluster.kept.expect(name)
        cluster.kept.identify(name, f"{NAMESPACE}/{name}/uid-{name}")
    file = cluster.folder / f"token-{name}"
    file.write_text(cluster.token(name, f"uid-{name}", "epochal-driver"))
    return AttemptClient(name, environment(cluster, file), patience_seconds=0.5)


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
    with pytest.raises(PodNotNeeded):
        _until_unwanted(spare(cluster, other, kept=False))
    with pytest.raises(Unauthenticated):
        _fetched(f"{taken.execution}-{taken.attempt}", environment(cluster, cluster.folder / f"token-{other}"))


def test_spare_ends_when_no_control_plane_keeps_it(cluster: PodCluster) -> None:
    askers = spare(cluster)
    assert askers.attempt(False, 0.0) is None and not cluster.kept.is_ready(SPARE)
    cluster.kept.forget(SPARE)
    with pytest.raises(PodNotNeeded, match="No control plane has supervised this pod"):
        _until_unwanted(askers)


def test_pod_cannot_read_the_attempt_of_another_pod(cluster: PodCluster) -> None:
    spare(cluster)
    with http_client(cluster.settings, cluster.token("other", "uid-other", "epochal-driver")) as client:
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
        keeper = PodClient(url, "one", cluster.token_file("one", "uid-one"))
        assert keeper.work(True, 0.0) is None
        give_work(cluster, "one", b"found")
        assert keeper.work(True, 0.0) == b"found"
        keeper.answer(b"{}")
        balancer.shutdown()
    assert cluster.kept.answer("one") == b"{}"
