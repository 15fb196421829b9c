"""Two control planes with one catalog and one store, and without access to each other's disks: bundles and logs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from starlette.requests import Request

from epochal.contracts.catalog import Failure
from epochal.faults import FaultPoint, injected
from epochal.service.api.bundles import ranged
from epochal.service.catalog.models import Attempt, StoreFile, Upload
from epochal.service.catalog.types import now
from epochal.service.commands.bundles.uploads import Written, uploads_folder
from epochal.service.domain.settings import Settings
from epochal.service.runtime import stored_files
from epochal.service.runtime.logs import keeping
from epochal.service.runtime.logs.files import log_path
from epochal.service.runtime.logs.rotation import rotate
from epochal.snapshots.store import SnapshotStore
from tests.kit.waiting import eventually
from tests.service.bundles import exported, finished, part, with_state
from tests.service.conftest import Plane, StandInSupervisor, free_port, http_client, serving


@pytest.fixture(autouse=True)
def configured_for_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are stored when a test requests it; bundles have several parts."""
    monkeypatch.setattr(keeping, "ROUND_SECONDS", 3600.0)
    monkeypatch.setattr(keeping, "QUIET_SECONDS", -3600.0)
    monkeypatch.setattr(stored_files, "PART_BYTES", 1000)


@pytest.fixture
def planes(tmp_path: Path) -> Iterator[tuple[Plane, Plane]]:
    with ExitStack() as stack:
        found = []
        for name in ("plane_a", "plane_b"):
            settings = Settings(
                data=tmp_path / name,
                port=free_port(),
                database=f"sqlite:///{tmp_path / 'catalog.sqlite'}",
                store=str(tmp_path / "store"),
            )
            supervisor = StandInSupervisor()
            control, token = stack.enter_context(serving(settings, supervisor))
            client = stack.enter_context(http_client(settings, token))
            found.append(Plane(control, client, settings, supervisor, []))
        yield found[0], found[1]


@pytest.fixture
def plane_a(planes: tuple[Plane, Plane]) -> Plane:
    return planes[0]


@pytest.fixture
def plane_b(planes: tuple[Plane, Plane]) -> Plane:
    return planes[1]


def store(plane: Plane) -> SnapshotStore:
    return SnapshotStore(plane.settings.store_url)


def expire(plane: Plane, *tables: type[StoreFile] | type[Upload]) -> None:
    with plane.control.database.writing() as session:
        for table in tables:
            session.execute(update(table).where(table.expires_at.is_not(None)).values(expires_at=now() - timedelta(1)))


# Bundles.


def test_artifact_uploaded_to_one_control_plane_runs_on_the_other(plane_a: Plane, plane_b: Plane) -> None:
    sha256 = plane_a.artifact()
    plane_b.post("/v1/applications", 201, name="flights", artifact=sha256, parameters={"out": "/data"})
    driver = plane_b.driver()
    assert hashlib.sha256(driver.catalog.artifact(sha256)).hexdigest() == sha256


def test_bundle_is_served_by_both_control_planes_and_expires(plane_a: Plane, plane_b: Plane) -> None:
    with_state(plane_a)
    bundle = exported(plane_a)
    id = plane_a.get("/v1/operations")["items"][0]["id"]
    path = f"/v1/applications/flights/exports/{id}"
    assert len(store(plane_a).list("exports")) == -(-len(bundle) // 1000) > 2
    assert plane_b.client.get(path).content == bundle
    range = plane_b.client.get(path, headers={"Range": "bytes=998-2001"})
    assert (range.status_code, range.content) == (206, bundle[998:2002])
    expire(plane_a, StoreFile)
    assert plane_b.client.get(path).json()["type"] == "urn:epochal:problem:snapshot-expired"
    plane_b.control.files.sweep()
    assert store(plane_a).list("exports") == []


@pytest.mark.alternating(2)
def test_upload_continues_on_the_other_control_plane(plane: Plane, plane_a: Plane, plane_b: Plane) -> None:
    with_state(plane)
    bundle = exported(plane)
    announced = {"sha256": hashlib.sha256(bundle).hexdigest(), "bytes": len(bundle)}
    with plane_a.as_bearer(plane_a.token("author", "mover")) as client:
        upload = client.post("/v1/imports", json=announced).json()["id"]
    part(plane_a, upload, 0, bundle[:1000])
    assert plane_b.get(f"/v1/imports/{upload}")["received"] == 1000
    part(plane_b, upload, 1000, bundle[1000:2000])
    part(plane_a, upload, 1000, bundle[1000:2000], expect=409)
    part(plane_a, upload, 2000, bundle[2000:])
    done = finished(plane_a, plane_b.post(f"/v1/imports/{upload}/application", parameters={"out": "/new"}))
    assert done["state"] == "succeeded", done["error"]
    assert plane_a.get("/v1/applications/flights")["head"]["epoch"] == 3
    eventually(lambda: not plane_a.get("/v1/imports")["items"])
    # The catalog deletes an upload before its parts are deleted.
    eventually(lambda: store(plane_a).list("uploads") == store(plane_a).list("imports") == [])
    assert (
        list(uploads_folder(plane_a.settings).iterdir()) == [] or list(uploads_folder(plane_b.settings).iterdir()) == []
    )


def announced(plane: Plane, bundle: bytes) -> str:
    answer = plane.post("/v1/imports", 201, sha256=hashlib.sha256(bundle).hexdigest(), bytes=len(bundle))
    return str(answer["id"])


def test_concurrent_copies_of_a_part_are_accepted_once(plane_a: Plane, plane_b: Plane) -> None:
    bundle = bytes(range(200))
    upload = announced(plane_a, bundle)

    def send(plane: Plane) -> int:
        answer = plane.client.put(f"/v1/imports/{upload}/content", params={"offset": 0}, content=bundle[:100])
        return answer.status_code

    with ThreadPoolExecutor(6) as pool:
        statuses = sorted(pool.map(send, (plane_a, plane_b) * 3))
    assert statuses == [200] + [409] * 5
    assert len(store(plane_a).list("uploads")) == 1
    assert plane_a.client.delete(f"/v1/imports/{upload}").status_code == 204
    assert store(plane_a).list("uploads") == []


def test_damaged_upload_is_discarded_and_can_be_repeated(plane_a: Plane, plane_b: Plane) -> None:
    bundle = bytes(range(200))
    upload = announced(plane_a, bundle)
    part(plane_a, upload, 0, bundle[:100])
    part(plane_a, upload, 100, bytes(100))
    answer = plane_b.client.post(f"/v1/imports/{upload}/application", json={})
    assert answer.status_code == 422 and "upload the bundle again" in answer.json()["detail"]
    assert part(plane_b, upload, 0, bundle)["received"] == 200
    plane_b.control.files.sweep()
    assert len(store(plane_a).list("uploads")) == 1


def test_abandoned_upload_expires(plane_a: Plane) -> None:
    upload = announced(plane_a, bytes(100))
    part(plane_a, upload, 0, bytes(50))
    used = announced(plane_a, bytes(101))
    uploads = plane_a.control.imports._uploads
    expire(plane_a, Upload)
    uploads.expire(lambda id: id == used)
    assert [item["id"] for item in plane_a.get("/v1/imports")["items"]] == [used]
    assert store(plane_a).list("uploads") == []


class Killed(BaseException):
    pass


@contextmanager
def killed_at(point: str) -> Iterator[None]:
    """The block must reach the fault point, at which it ends as if its process was killed."""

    def kill(hit: FaultPoint, epoch: int | None) -> None:
        if hit.name == point:
            raise Killed

    with injected(kill), pytest.raises(Killed):
        yield


@pytest.mark.parametrize("point", ["file.intended", "file.written"])
def test_part_of_a_killed_control_plane_can_be_sent_again(plane_a: Plane, plane_b: Plane, point: str) -> None:
    upload = announced(plane_a, bytes(100))
    with killed_at(point):
        plane_a.control.imports.append(upload, "default", 0, bytes(50))
    assert plane_b.control.imports.append(upload, "default", 0, bytes(100)).received == 100
    expire(plane_a, StoreFile)
    plane_b.control.files.sweep()
    assert len(store(plane_a).list("uploads")) == 1


def test_files_of_a_killed_import_are_known_to_the_other_control_plane(plane_a: Plane, plane_b: Plane) -> None:
    """The first control plane was killed during the import."""
    first = Written(plane_a.control.database, plane_a.control.files, "operation")
    first.add(["b/2", "b/1"])
    first.add(["c"])
    second = Written(plane_b.control.database, plane_b.control.files, "operation")
    assert sorted(second.paths) == ["b/1", "b/2", "c"]
    second.forget()
    assert Written(plane_a.control.database, plane_a.control.files, "operation").paths == []
    assert store(plane_a).list("imports") == []


@pytest.mark.parametrize(
    ("range_header", "status", "content"),
    [
        (None, 200, "0123456789"),
        ("bytes=0-0", 206, "0"),
        ("bytes=3-", 206, "3456789"),
        ("bytes=8-99", 206, "89"),
        ("bytes=-3", 206, "789"),
        ("bytes=-99", 206, "0123456789"),
        ("bytes=10-", 416, ""),
        ("bytes=5-4", 416, ""),
        ("bytes=-0", 416, ""),
        ("bytes=0-1,4-5", 200, "0123456789"),
        ("lines=1-2", 200, "0123456789"),
        ("bytes=x-", 200, "0123456789"),
    ],
)
def test_range_header_selects_bytes(range_header: str | None, status: int, content: str) -> None:
    headers = [] if range_header is None else [(b"range", range_header.encode())]
    read: list[str] = []

    def pieces(start: int, end: int) -> Iterator[bytes]:
        read.append("0123456789"[start:end])
        yield b""

    answer = ranged(Request({"type": "http", "headers": headers}), pieces, 10, "text/plain", {"etag": '"e"'})
    if status != 416:
        next(pieces_of(answer))
    assert (answer.status_code, "".join(read)) == (status, content)
    assert answer.headers.get("content-length", "0") == str(len(content))


def pieces_of(answer: Any) -> Iterator[Any]:
    """Read the pieces without a server."""
    import asyncio

    async def collected() -> list[Any]:
        return [piece async for piece in answer.body_iterator]

    yield asyncio.run(collected())


# Logs.

LOGS = "/v1/applications/flights/logs"


def ended(plane: Plane, text: str) -> int:
    """An attempt whose driver ran on the machine of ``plane``, and has terminated."""
    driver = plane.driver()
    write(plane, driver.attempt, text)
    with plane.control.database.writing() as session:
        session.get_one(Attempt, (driver.execution, driver.attempt)).process = "//elsewhere/boot/1@2"
    driver.catalog.finish(Failure(type="source-error", message="missing folder"))
    return driver.attempt


def write(plane: Plane, attempt: int, text: str) -> Path:
    execution = plane.get("/v1/applications/flights")["execution"]
    path = log_path(plane.settings.logs_directory, "flights", execution, attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as log:
        log.write(text)
    return path


def test_log_of_an_ended_driver_is_served_by_both(plane_a: Plane, plane_b: Plane) -> None:
    plane_a.application()
    attempt = ended(plane_a, "one\ntwo\n")
    missing = plane_b.client.get(LOGS)
    assert missing.status_code == 404 and "is on host elsewhere" in missing.json()["detail"]
    for _ in range(2):
        plane_b.control.log_keeper.look()  # has no such log
        plane_a.control.log_keeper.look()
        assert plane_b.client.get(LOGS, params={"tail": 1}).text == "two\n"
        assert plane_b.client.get(LOGS, params={"follow": True, "attempt": attempt}).text == "one\ntwo\n"
        assert len(store(plane_a).list("logs")) == 1
    write(plane_a, attempt, "last words\n")
    plane_a.control.log_keeper.look()
    plane_a.control.files.sweep()
    assert plane_b.client.get(LOGS).text == "one\ntwo\nlast words\n"
    assert len(store(plane_a).list("logs")) == 1


def test_following_a_log_ends_before_a_remote_attempt(plane_a: Plane, plane_b: Plane) -> None:
    plane_a.application()
    first = ended(plane_b, "one\n")
    second = plane_a.driver()
    with plane_a.control.database.writing() as session:
        session.get_one(Attempt, (second.execution, second.attempt)).process = "//elsewhere/boot/1@2"
    with plane_b.client.stream("GET", LOGS, params={"follow": True}) as answer:
        assert answer.status_code == 404
    stream = plane_b.client.get(LOGS, params={"follow": True, "attempt": first})
    assert stream.text == "one\n"


def test_end_of_a_large_log_is_stored_in_whole_lines(
    plane_a: Plane, plane_b: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "KEPT_BYTES", 100)
    plane_a.application()
    attempt = ended(plane_a, "".join(f"line {number}\n" for number in range(100, 120)))
    path = write(plane_a, attempt, "")
    rotate(path, 100, 3)
    write(plane_a, attempt, "line 120\nline 121\n")
    plane_a.control.log_keeper.look()
    stored = plane_b.client.get(LOGS).text
    assert stored == "".join(f"line {number}\n" for number in range(111, 122)) and len(stored) == 99
    plane_a.control.log_keeper.look()
    assert len(store(plane_a).list("logs")) == 1


def test_log_of_a_running_driver_is_not_stored(plane_a: Plane) -> None:
    plane_a.application()
    driver = plane_a.driver()
    write(plane_a, driver.attempt, "one\n")
    plane_a.control.log_keeper.look()
    assert store(plane_a).list("logs") == []


def test_logs_are_deleted_with_their_application(plane_a: Plane) -> None:
    plane_a.application()
    path = write(plane_a, ended(plane_a, "one\n"), "")
    plane_a.control.log_keeper.look()
    other = plane_a.settings.logs_directory / "flights-2" / f"{'0' * 32}-1.log"  # of no application in this catalog
    other.parent.mkdir()
    other.touch()
    plane_a.post("/v1/applications/flights/stop")
    execution = plane_a.get("/v1/applications/flights")["execution"]
    plane_a.control.ledger.execution_ended(execution, "stopped", None)
    assert plane_a.client.delete("/v1/applications/flights").status_code == 204
    write_again = path.read_bytes()
    plane_a.control.files.sweep()
    assert store(plane_a).list("logs") == []
    path.write_bytes(write_again + b"last words\n")
    plane_a.control.log_keeper.look()
    assert store(plane_a).list("logs") == [] and not path.exists() and other.exists()


def test_logs_are_deleted_after_their_retention(
    plane_a: Plane, plane_b: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane_a.application()
    path = write(plane_a, ended(plane_a, "one\n"), "")
    plane_a.control.log_keeper.look()
    monkeypatch.setattr(plane_a.control.log_keeper, "_kept_for", timedelta(seconds=-60))
    with plane_a.control.database.writing() as session:
        session.execute(update(Attempt).values(ended_at=now() - timedelta(days=31)))
    expire(plane_a, StoreFile)
    plane_a.control.log_keeper.look()
    plane_a.control.files.sweep()
    assert not path.exists() and store(plane_a).list("logs") == []
    for plane in (plane_a, plane_b):
        answer = plane.client.get(LOGS)
        assert answer.status_code == 404 and "kept for 30 days" in answer.json()["detail"]


@pytest.mark.parametrize("point", ["file.intended", "file.written"])
def test_log_is_stored_after_the_first_control_plane_was_killed(plane_a: Plane, plane_b: Plane, point: str) -> None:
    plane_a.application()
    ended(plane_a, "one\n")
    with killed_at(point):
        plane_a.control.log_keeper.look()
    plane_a.control.log_keeper.look()
    assert plane_b.client.get(LOGS).text == "one\n"
    with plane_a.control.database.writing() as session:
        session.execute(update(StoreFile).where(StoreFile.bytes.is_(None)).values(expires_at=now() - timedelta(1)))
    plane_a.control.files.sweep()
    assert len(store(plane_a).list("logs")) == 1


def test_page_cursor_is_valid_on_the_other_control_plane(plane_a: Plane, plane_b: Plane) -> None:
    for name in ("first", "second"):
        plane_a.application(name, start=False)
    page = plane_a.get("/v1/applications", limit=1)
    rest = plane_b.get("/v1/applications", limit=1, cursor=page["next_cursor"])
    assert [item["name"] for item in (*page["items"], *rest["items"])] == ["first", "second"]
    assert rest["next_cursor"] is None
