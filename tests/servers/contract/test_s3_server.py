"""The S3 server and the proxy before it, on which tests of object stores rely: conditional writes and each fault."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, PreconditionError
from obstore.store import S3Store

from epochal.testing.servers.s3 import SeaweedServer, s3, s3_store
from epochal.testing.servers.s3_proxy import Moment, S3Proxy
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from obstore import PutResult, UpdateVersion

pytestmark = pytest.mark.server

WRITERS = 8


@pytest.fixture
def direct(s3_server: SeaweedServer, bucket: str) -> S3Store:
    """A client of the bucket without the proxy."""
    return s3_server.store(bucket)


@pytest.fixture
def store(s3_proxy: S3Proxy, bucket: str) -> S3Store:
    """A client of the bucket through the proxy, which makes each request once."""
    return s3_store(s3_proxy.environment(), bucket)


@pytest.fixture
def in_background() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(WRITERS) as pool:
        yield pool.submit


def exists(store: S3Store, path: str) -> bool:
    try:
        store.head(path)
    except FileNotFoundError:
        return False
    return True


def version(written: PutResult) -> UpdateVersion:
    """Return the condition that the object has not changed since (``If-Match``)."""
    assert written["e_tag"] is not None
    return {"e_tag": written["e_tag"]}


class TestServer:
    def test_racing_creations_have_one_winner(self, direct: S3Store, in_background: Callable[..., Future[Any]]) -> None:
        barrier = threading.Barrier(WRITERS)

        def create(path: str, number: int) -> bool:
            barrier.wait()
            try:
                direct.put(path, str(number).encode(), mode="create")
            except AlreadyExistsError:
                return False
            return True

        for attempt in range(2):  # the server polls its locks every second
            won = [in_background(create, f"race/{attempt}", number) for number in range(WRITERS)]
            winners = [number for number, future in enumerate(won) if future.result()]
            assert len(winners) == 1
            assert bytes(direct.get(f"race/{attempt}").bytes()) == str(winners[0]).encode()

    def test_racing_updates_of_one_version_have_one_winner(
        self, direct: S3Store, in_background: Callable[..., Future[Any]]
    ) -> None:
        first = direct.put("head", b"first")
        barrier = threading.Barrier(WRITERS)

        def update(number: int) -> bool:
            barrier.wait()
            try:
                direct.put("head", str(number).encode(), mode=version(first))
            except PreconditionError:
                return False
            return True

        won = [in_background(update, number) for number in range(WRITERS)]
        winners = [number for number, future in enumerate(won) if future.result()]
        assert len(winners) == 1
        assert bytes(direct.get("head").bytes()) == str(winners[0]).encode()

    @pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
    def test_acknowledged_writes_survive_a_restart(self, s3_server: SeaweedServer, direct: S3Store, kill: bool) -> None:
        direct.put("a", b"before")
        s3_server.stop(kill)
        with pytest.raises(BaseError, match="error sending request"):
            direct.get("a")
        s3_server.start()
        assert bytes(direct.get("a").bytes()) == b"before"
        direct.put("a", b"after")
        assert bytes(direct.get("a").bytes()) == b"after"

    def test_requests_to_a_paused_server_are_answered_later(
        self, s3_server: SeaweedServer, direct: S3Store, in_background: Callable[..., Future[Any]]
    ) -> None:
        with s3_server.paused():
            put = in_background(direct.put, "a", b"1")
            with pytest.raises(TimeoutError):
                put.result(timeout=0.5)
        put.result(timeout=60)
        assert exists(direct, "a")

    def test_read_only_user_reads_and_lists_and_cannot_write(
        self, s3_server: SeaweedServer, bucket: str, direct: S3Store
    ) -> None:
        direct.put("a", b"1")
        reader = s3_store(s3_server.read_only_environment(), bucket)
        assert bytes(reader.get("a").bytes()) == b"1"
        assert [entry["path"] for entry in reader.list().collect()] == ["a"]
        with pytest.raises(PermissionDeniedError, match="AccessDenied"):
            reader.put("b", b"1")
        with pytest.raises(BaseError, match="AccessDenied"):
            reader.delete("a")
        assert exists(direct, "a") and not exists(direct, "b")

    def test_wrong_credentials_are_refused(self, s3_server: SeaweedServer, bucket: str) -> None:
        with pytest.raises(PermissionDeniedError, match="InvalidAccessKeyId"):
            s3_store(s3_server.unknown_user_environment(), bucket).put("a", b"1")
        with pytest.raises(PermissionDeniedError, match="SignatureDoesNotMatch"):
            s3_store(s3_server.wrong_secret_environment(), bucket).put("a", b"1")

    def test_rotated_credentials_replace_the_previous_ones(self, s3_server: SeaweedServer) -> None:
        with s3() as own:  # other tests keep the credentials of the shared server
            bucket = own.create_bucket()
            previous = own.store(bucket)
            own.rotate_credentials()
            with pytest.raises(PermissionDeniedError, match="InvalidAccessKeyId"):
                previous.put("a", b"1")
            own.store(bucket).put("a", b"1")

    def test_missing_buckets_are_not_created_by_a_write(self, s3_server: SeaweedServer) -> None:
        with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
            s3_server.store("no-such-bucket").put("a", b"1")


class TestRequests:
    def test_counts_requests_by_kind(self, s3_proxy: S3Proxy, store: S3Store) -> None:
        store.put("a/b", b"12345")
        mark = s3_proxy.mark()
        store.put("a/c", b"1")
        store.get("a/b").bytes()
        store.get_range("a/b", start=1, end=3)
        store.head("a/b")
        store.list("a").collect()
        store.list_with_delimiter("a")
        store.delete(["a/b", "a/c"])
        assert s3_proxy.counts(mark) == {"PUT": 1, "GET": 2, "HEAD": 1, "LIST": 2, "DELETE": 1}
        assert s3_proxy.counts()["PUT"] == 2

    def test_records_what_clients_sent_and_received(self, s3_proxy: S3Proxy, bucket: str, store: S3Store) -> None:
        first = store.put("a key/ü", b"12345", mode="create")
        store.put("a key/ü", b"123456", mode=version(first))
        with pytest.raises(AlreadyExistsError):
            store.put("a key/ü", b"1", mode="create")
        assert bytes(store.get_range("a key/ü", start=1, end=3)) == b"23"
        store.list("a key").collect()
        created, updated, lost, read, listed = s3_proxy.requests()
        assert (created.path, created.status, created.bytes_in) == (f"/{bucket}/a key/ü", 200, 5)
        assert (created.if_none_match, created.if_match) == ("*", None)
        assert (updated.if_none_match, updated.if_match) == (None, first["e_tag"])
        assert (lost.status, lost.server_status) == (412, 412)
        assert (read.status, read.range, read.bytes_out) == (206, "bytes=1-2", 2)
        assert (listed.kind, listed.query["prefix"]) == ("LIST", "a key/")

    def test_passes_large_objects_on_unchanged(self, s3_proxy: S3Proxy, store: S3Store) -> None:
        data = bytes(range(256)) * 80_000
        store.put("large", data)  # in parts
        assert bytes(store.get("large").bytes()) == data
        assert s3_proxy.counts()["POST"] == 2


class TestFaults:
    def test_delayed_requests_reach_the_server_late(
        self, s3_proxy: S3Proxy, store: S3Store, direct: S3Store, in_background: Callable[..., Future[Any]]
    ) -> None:
        delay = s3_proxy.delay(3600, kinds=["PUT"], containing="late")
        put = in_background(store.put, "late", b"1")
        assert delay.met.wait(60)
        store.put("other", b"1")
        assert not exists(direct, "late") and not put.done()
        s3_proxy.heal()
        put.result(60)
        assert exists(direct, "late")
        s3_proxy.delay(0.2)
        began = time.monotonic()
        store.head("late")
        assert time.monotonic() - began >= 0.2

    def test_refused_requests_do_not_reach_the_server(self, s3_proxy: S3Proxy, store: S3Store, direct: S3Store) -> None:
        s3_proxy.refuse(503, times=2, kinds=["PUT"])
        for _ in range(2):
            with pytest.raises(BaseError, match="SlowDown"):
                store.put("a", b"1")
        assert not exists(direct, "a")
        store.put("a", b"1")
        s3_proxy.refuse(400, code="ExpiredToken")
        with pytest.raises(BaseError, match="ExpiredToken"):
            store.get("a")
        s3_proxy.heal()
        store.get("a")
        statuses = [(request.status, request.server_status, request.fault) for request in s3_proxy.requests()]
        refused = (503, None, "refuse")
        assert statuses == [refused, refused, (200, 200, None), (400, None, "refuse"), (200, 200, None)]

    def test_answers_500_after_the_write(self, s3_proxy: S3Proxy, store: S3Store, direct: S3Store) -> None:
        s3_proxy.answer_500_after_write(times=1, containing="a")
        store.put("b", b"1")
        with pytest.raises(BaseError, match="InternalError"):
            store.put("a", b"1", mode="create")
        assert exists(direct, "a")
        with pytest.raises(AlreadyExistsError):
            store.put("a", b"1", mode="create")
        (request,) = [request for request in s3_proxy.requests() if request.fault]
        assert (request.status, request.server_status) == (500, 200)

    @pytest.mark.parametrize("moment", ["before", "after", "middle"])
    def test_cuts_connections(self, s3_proxy: S3Proxy, store: S3Store, direct: S3Store, moment: Moment) -> None:
        s3_proxy.cut(times=1, moment=moment)
        with pytest.raises(BaseError, match="error sending request"):
            store.put("a", b"1")
        assert exists(direct, "a") == (moment != "before")
        store.put("a", b"0123456789")
        s3_proxy.cut(times=1, moment=moment, kinds=["GET"])
        with pytest.raises(BaseError):
            store.get("a").bytes()
        assert bytes(store.get("a").bytes()) == b"0123456789"

    def test_held_put_of_an_ended_client_lands_after_release(
        self, s3_proxy: S3Proxy, bucket: str, direct: S3Store
    ) -> None:
        s3_proxy.hold(times=1, kinds=["PUT"])
        environment = s3_proxy.environment()
        client = s3_store(environment, bucket, timeout_seconds=0.5)
        with pytest.raises(BaseError):
            client.put("head", b"of a dead driver")
        assert s3_proxy.held() == 1
        s3_store(environment, bucket).put("head", b"of its successor")
        (landed,) = s3_proxy.release()
        assert (landed.kind, landed.server_status) == ("PUT", 200)
        assert bytes(direct.get("head").bytes()) == b"of a dead driver"

    def test_held_creation_loses_after_another_one(
        self, s3_proxy: S3Proxy, store: S3Store, direct: S3Store, in_background: Callable[..., Future[Any]]
    ) -> None:
        s3_proxy.hold(times=1, kinds=["PUT"])
        late = in_background(store.put, "epoch", b"late", mode="create")
        s3_proxy.wait_for_held()
        store.put("epoch", b"in time", mode="create")
        assert s3_proxy.release()[0].server_status == 412
        with pytest.raises(AlreadyExistsError):
            late.result(60)
        assert bytes(direct.get("epoch").bytes()) == b"in time"

    def test_refuses_connections_while_down_and_keeps_its_port(
        self, s3_proxy: S3Proxy, store: S3Store, direct: S3Store, in_background: Callable[..., Future[Any]]
    ) -> None:
        store.put("a", b"1")
        s3_proxy.hold(kinds=["GET"])
        reading = in_background(store.get, "a")
        s3_proxy.wait_for_held()
        for _ in range(2):
            mark = s3_proxy.mark()
            s3_proxy.down()
            for _ in range(3):
                with pytest.raises(BaseError, match="error sending request"):
                    store.put("b", b"1")
            assert s3_proxy.requests(mark) == [] and not exists(direct, "b")
            s3_proxy.up()
            store.put("c", b"1")
        with pytest.raises(BaseError):
            reading.result(60)
        s3_proxy.release()

    def test_server_that_is_down_answers_nothing(
        self, s3_server: SeaweedServer, s3_proxy: S3Proxy, store: S3Store
    ) -> None:
        store.put("a", b"1")
        s3_server.stop(kill=True)
        with pytest.raises(BaseError, match="error sending request"):
            store.get("a")
        s3_server.start()
        assert bytes(store.get("a").bytes()) == b"1"
        assert [request.status for request in s3_proxy.requests()] == [200, None, 200]

    def test_closed_proxy_drops_held_requests(
        self, s3_proxy: S3Proxy, store: S3Store, direct: S3Store, in_background: Callable[..., Future[Any]]
    ) -> None:
        s3_proxy.hold()
        put = in_background(store.put, "a", b"1")
        s3_proxy.wait_for_held()
        s3_proxy.close()
        with pytest.raises(BaseError):
            put.result(60)
        eventually(lambda: s3_proxy.held() == 0)
        assert not exists(direct, "a")
