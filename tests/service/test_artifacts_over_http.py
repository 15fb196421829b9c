"""Registration, refusal and deletion of artifacts over HTTP."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

import pytest

from epochal.snapshots.store import SnapshotStore
from tests.service.problems import check_problem

if TYPE_CHECKING:
    from tests.service.conftest import Plane


def test_an_artifact_is_registered_once(plane: Plane) -> None:
    sent = b"pipeline = None\n"
    first = plane.client.post("/v1/artifacts", params={"filename": "flights.py"}, content=sent)
    second = plane.client.post("/v1/artifacts", params={"filename": "other.py"}, content=sent)

    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json() == plane.get(f"/v1/artifacts/{first.json()['sha256']}")
    assert (first.json()["filename"], first.json()["bytes"]) == ("flights.py", len(sent))
    assert [item["sha256"] for item in plane.get("/v1/artifacts")["items"]] == [first.json()["sha256"]]
    store = SnapshotStore(plane.settings.store_url)
    (path,) = store.list("artifacts")
    assert store.read(path) == sent


def zipped(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("UP", ".."), content)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("filename", "content", "expected"),
    [
        ("flights.py", b"", "empty"),
        ("flights.py", b"\xff\xfe", "UTF-8"),
        ("flights.txt", b"x", "neither"),
        ("flights.zip", b"not a zip", "not a zip"),
        ("flights.zip", zipped(UP__escape=b"x"), "points out of"),
    ],
)
def test_unusable_artifacts_are_refused(plane: Plane, filename: str, content: bytes, expected: str) -> None:
    answer = plane.client.post("/v1/artifacts", params={"filename": filename}, content=content)

    assert answer.status_code == 422
    assert answer.json()["type"] == "urn:epochal:problem:invalid-artifact"
    assert expected in answer.json()["detail"]


def test_an_unused_artifact_is_deleted_with_its_file(plane: Plane) -> None:
    sha256 = plane.artifact()
    store = SnapshotStore(plane.settings.store_url)
    (stored,) = store.list("artifacts")

    for _ in range(2):
        assert plane.client.delete(f"/v1/artifacts/{sha256}").status_code == 204
    assert plane.client.get(f"/v1/artifacts/{sha256}").status_code == 404
    assert store.list("artifacts") == []
    assert plane.artifact() == sha256
    assert store.list("artifacts") not in ([], [stored])
    plane.application()


def test_an_artifact_of_a_version_cannot_be_deleted(plane: Plane) -> None:
    sha256 = plane.application(start=False)["artifact"]
    reader = plane.as_bearer(plane.token("viewer"))
    check_problem(reader.delete(f"/v1/artifacts/{sha256}"), 403, "forbidden")
    problem = check_problem(plane.client.delete(f"/v1/artifacts/{sha256}"), 409, "conflict")
    assert "version 1 of 'flights':" in problem["detail"]

    assert plane.client.delete("/v1/applications/flights").status_code == 204
    problem = check_problem(plane.client.delete(f"/v1/artifacts/{sha256}"), 409, "conflict")
    assert "version 1 of 'flights' (deleted)" in problem["detail"]
    assert plane.get(f"/v1/artifacts/{sha256}")["sha256"] == sha256


def test_a_zip_archive_is_accepted(plane: Plane) -> None:
    answer = plane.client.post("/v1/artifacts", params={"filename": "app.zip"}, content=zipped(main=b"x = 1"))

    assert answer.status_code == 201


def test_a_file_name_that_is_a_path_is_refused(plane: Plane) -> None:
    answer = plane.client.post("/v1/artifacts", params={"filename": "../../etc/passwd.py"}, content=b"x = 1")

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "filename"
