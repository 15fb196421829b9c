"""Limits for disk usage: endless logs, and uploads without enough space."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epochal.service.domain.setting_sections import Limits
from epochal.service.domain.settings import Settings
from epochal.service.runtime.logs.files import LogFollower, read_end, tail
from epochal.service.runtime.logs.rotation import rotate, rotated
from epochal.service.runtime.logs.rotator import LogRotator
from tests.kit.waiting import eventually
from tests.service.test_supervision_launcher import Drivers

if TYPE_CHECKING:
    from tests.service.conftest import Plane

MB = 1 << 20
FLOOD = """
import os, time
lines = (b"x" * 99 + b"\\n") * (1 << 14)
for _ in range(200):
    os.write(1, lines)
while os.fstat(1).st_size > 1 << 20:  # a line written while the log is truncated may be lost
    time.sleep(0.01)
os.write(1, b"the end\\n")
"""
"""Writes some 300 MB as fast as possible."""


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    found = Drivers(tmp_path)
    yield found
    found.end()


def test_a_flooding_log_is_bounded_and_retains_its_end(drivers: Drivers, tmp_path: Path) -> None:
    """Logs take at most seven times the size of one file with three rotated ones, however much was written."""
    rotator = LogRotator(tmp_path / "logs", MB, 3)
    rotator.open()
    try:
        launcher, process = drivers.launch(FLOOD)
        eventually(lambda: not launcher.alive(process))
        draft = drivers.log.with_name(f"{drivers.log.name}.part")
        eventually(lambda: drivers.log.stat().st_size <= MB and not draft.exists())
        files = [*drivers.log.parent.iterdir()]
        assert set(files) <= {drivers.log, *(rotated(drivers.log, number) for number in (1, 2, 3))}
        assert sum(file.stat().st_size for file in files) <= 7 * MB
        assert tail(drivers.log, 1) == b"the end\n"
        assert b"bytes of this log are left out here" in read_end(drivers.log, 100 * MB)
    finally:
        rotator.close()


def test_a_follower_of_a_truncated_log_continues_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [f"{number:09}\n".encode() for number in range(1000)]
    path.write_bytes(b"".join(lines[:10]))
    follower = LogFollower(path)
    assert b"".join(follower.appended()) == b"".join(lines[:10])
    path.write_bytes(b"".join(lines))
    assert rotate(path, largest=1000, files=1)
    read = b"".join(follower.appended()).splitlines(keepends=True)
    assert read[0] == b"[epochal: 9010 bytes of this log are left out here: it grew too fast]\n"
    assert read[1:] == lines[901:]


def test_a_follower_that_has_reached_the_retained_end_misses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [f"{number:09}\n".encode() for number in range(1000)]
    path.write_bytes(b"".join(lines[:950]))
    follower = LogFollower(path)
    assert b"".join(follower.appended()) == b"".join(lines[:950])
    path.write_bytes(b"".join(lines))
    assert rotate(path, largest=1000, files=1)
    with path.open("ab") as log:
        log.write(b"next\n")
    assert b"".join(follower.appended()).splitlines(keepends=True) == [*lines[950:], b"next\n"]


def test_a_link_in_place_of_a_log_is_not_rotated(tmp_path: Path) -> None:
    other, folder = tmp_path / "other", tmp_path / "logs" / "flights"
    other.write_bytes(b"x" * 5000)
    folder.mkdir(parents=True)
    (folder / "e1-1.log").symlink_to(other)
    assert not LogRotator(tmp_path / "logs", 1000, 1).look()
    assert other.read_bytes() == b"x" * 5000 and os.listdir(folder) == ["e1-1.log"]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Settings under which every disk is too full for uploads."""
    return settings.model_copy(update={"limits": Limits(spare_disk_bytes=1 << 62)})


HEAD = (
    "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Length: 1000000\r\n"
    "Expect: 100-continue\r\n{more}\r\n"
)


@pytest.mark.parametrize("more", ["", "Idempotency-Key: k\r\n"])
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/artifacts?filename=x.py"), ("PUT", f"/v1/imports/{'0' * 32}/content?offset=0")]
)
def test_an_upload_without_space_is_refused_before_its_body(plane: Plane, method: str, path: str, more: str) -> None:
    token = plane.admin_token
    with socket.create_connection(("127.0.0.1", plane.settings.port)) as connection:
        connection.sendall(HEAD.format(method=method, path=path, token=token, more=more).encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 507 "), answer
    assert b"urn:epochal:problem:storage-full" in answer and b"Free some, and send it again." in answer
    assert plane.get("/v1/artifacts")["items"] == []


def test_a_bundle_without_space_is_refused_when_announced(plane: Plane) -> None:
    answer = plane.client.post("/v1/imports", json={"sha256": "0" * 64, "bytes": 1 << 30})
    assert (answer.status_code, answer.json()["type"]) == (507, "urn:epochal:problem:storage-full")
    assert plane.get("/v1/imports")["items"] == []


def test_callers_without_permission_learn_nothing_about_the_disk(plane: Plane, serve: Callable[..., Any]) -> None:
    for token, status in ((None, 401), (plane.token("viewer"), 403)):
        with plane.as_bearer(token) as client:
            answer = client.post("/v1/artifacts", params={"filename": "x.py"}, content=b"x" * 1000)
            assert answer.status_code == status and "disk" not in answer.text
