"""Helpers for tests of exports and imports."""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import Any

import pyarrow as pa
from sqlalchemy import func, select

from epochal.service.catalog.models import Application, Artifact, Branch, Epoch, Execution, Version
from epochal.snapshots.store import SnapshotStore
from tests.kit.stores import snapshot_files
from tests.kit.waiting import eventually
from tests.service.conftest import Plane
from tests.service.lookups import DELAYS, StateDriver, route

EXPORT = "/v1/applications/flights/export"
NOWHERE: dict[str, Any] = {"origin": None, "destination": None, "flights": 7, "worst": None}


def with_state(plane: Plane, epochs: int = 3, packs: bool = False, **more: Any) -> StateDriver:
    """``packs``: some deltas are in packs."""
    plane.application(**more)
    driver = StateDriver(plane, tables=(DELAYS,), packs=packs)
    for number in range(1, epochs + 1):
        driver.epoch((DELAYS, [route("JFK", "LAX", number, 1.0), route("SFO", f"A{number}", number, 2.0), NOWHERE]))
    return driver


def finished(plane: Plane, operation: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def has_ended() -> bool:
        found.update(plane.get(f"/v1/operations/{operation['id']}"))
        return bool(found["state"] != "running")

    eventually(has_ended)
    return found


def exported(plane: Plane, application: str = "flights", **request: Any) -> bytes:
    done = finished(plane, plane.post(f"/v1/applications/{application}/export", **request))
    assert done["state"] == "succeeded", done["error"]
    answer = plane.client.get(f"/v1/applications/{application}/exports/{done['id']}")
    assert answer.status_code == 200
    assert hashlib.sha256(answer.content).hexdigest() == done["result"]["sha256"]
    assert len(answer.content) == done["result"]["bytes"]
    return answer.content


def uploaded(plane: Plane, bundle: bytes) -> str:
    announced = plane.post("/v1/imports", 201, sha256=hashlib.sha256(bundle).hexdigest(), bytes=len(bundle))
    if announced["received"] < len(bundle):
        part(plane, announced["id"], announced["received"], bundle[announced["received"] :])
    return str(announced["id"])


def part(plane: Plane, id: str, offset: int, data: bytes, expect: int = 200) -> dict[str, Any]:
    answer = plane.client.put(f"/v1/imports/{id}/content", params={"offset": offset}, content=data)
    assert answer.status_code == expect, answer.text
    return dict(answer.json())


def imported(plane: Plane, bundle: bytes, **request: Any) -> dict[str, Any]:
    id = uploaded(plane, bundle)
    parameters = {"out": f"/new-{request['name']}" if "name" in request else "/new"}
    return finished(plane, plane.post(f"/v1/imports/{id}/application", **{"parameters": parameters, **request}))


def refused(plane: Plane, bundle: bytes, **request: Any) -> tuple[int, str, str]:
    """Status, type and text of the problem, after checking that the refusal left no files and rows."""
    before = files(plane), catalog(plane)
    id = uploaded(plane, bundle)
    body = {"parameters": {"out": "/new"}, **request}
    answer = plane.client.post(f"/v1/imports/{id}/application", json=body)
    problem = answer.json()
    status = answer.status_code
    if status == 202:
        done = finished(plane, problem)
        assert done["state"] == "failed", done
        problem = done["error"]
        status = problem["status"]
    assert (files(plane), catalog(plane)) == before
    assert plane.get("/v1/applications")["items"] == []
    return status, problem["type"].rpartition(":")[2], problem["detail"]


def files(plane: Plane) -> list[str]:
    return snapshot_files(SnapshotStore(plane.settings.store_url))


def catalog(plane: Plane) -> list[int]:
    """The number of rows in each table that an import writes."""
    with plane.control.database.reading() as session:
        tables = (Application, Version, Branch, Execution, Epoch, Artifact)
        return [session.scalars(select(func.count()).select_from(table)).one() for table in tables]


def value(plane: Plane, application: str, origin: str, destination: str, **query: Any) -> Any:
    path = f"/v1/applications/{application}/state/delays/keys/{origin},{destination}"
    answer = plane.client.get(path, params=query)
    return answer.json()["value"] if answer.status_code == 200 else answer.status_code


def members(bundle: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    plain = pa.CompressedInputStream(pa.BufferReader(bundle), "zstd").read()
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        return [(about, archive.extractfile(about).read()) for about in archive]  # type: ignore[union-attr]


def packed(parts: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for about, data in parts:
            about.size = len(data) if about.isreg() else 0
            archive.addfile(about, io.BytesIO(data))
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as compressed:
        compressed.write(plain.getvalue())
    return sink.getvalue().to_pybytes()
