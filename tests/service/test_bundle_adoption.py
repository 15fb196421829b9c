"""Bundles in the data folder of an earlier version, on their way in and out, are in the store after a start."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epochal.service.catalog.operations import OperationRepository
from epochal.service.commands.bundles import adoption
from epochal.service.commands.bundles.adoption import adopt_bundles
from epochal.service.commands.bundles.uploads import Written
from epochal.service.domain.identifiers import new_id
from epochal.service.runtime import stored_files
from epochal.wire.bundles import ImportAnswer
from tests.service.bundles import EXPORT, finished, part, with_state
from tests.service.conftest import Plane


class Killed(BaseException):
    """Nothing that a process would still do when it is killed catches it."""


class Former:
    """What a version before has left: a bundle to be fetched, and an upload of which ``received`` bytes came."""

    def __init__(self, plane: Plane, received: int) -> None:
        self.plane = plane
        with_state(plane)
        self.export = finished(plane, plane.post(EXPORT))
        self.bundle = self.fetched().content
        control, data = plane.control, plane.settings.data
        control.worker.close()
        control.files.delete_all("export", self.export["id"])
        self.exported = data / "exports" / f"{self.export['id']}.epochal"
        self.exported.parent.mkdir()
        self.exported.write_bytes(self.bundle)
        self.id = new_id()
        self.imports = data / "imports"
        announced = {
            "id": self.id,
            "sha256": hashlib.sha256(self.bundle).hexdigest(),
            "bytes": len(self.bundle),
            "received": 0,
            "created_at": "2030-01-01T00:00:00Z",
            "created_by": "somebody",
        }
        self._file(f"{self.id}.json", ImportAnswer.model_validate(announced).model_dump_json().encode())
        self._file(f"{self.id}.part", self.bundle[:received])
        with control.database.writing() as session:
            self.under_way = (
                OperationRepository(session).add("import", None, None, {"upload": self.id, "name": "copy"}, "me").id
            )
        self._file(f"{self.id}.{self.under_way}.written", b"a/bases/x\na/manifests/y\n")
        self._file(f"{self.id}.{new_id()}.written", b"of one that has ended\n")

    def _file(self, name: str, content: bytes) -> None:
        (self.imports / name).write_bytes(content)

    def fetched(self) -> Any:
        return self.plane.client.get(f"/v1/applications/flights/exports/{self.export['id']}")

    def adopt(self) -> None:
        adopt_bundles(self.plane.settings, self.plane.control.database, self.plane.control.files)

    def check(self, received: int) -> None:
        plane = self.plane
        assert self.fetched().content == self.bundle
        (upload,) = plane.get("/v1/imports")["items"]
        assert (upload["id"], upload["received"], upload["created_by"]) == (self.id, received, "somebody")
        written = Written(plane.control.database, plane.control.files, self.under_way)
        assert written.paths == ["a/bases/x", "a/manifests/y"]
        assert not self.exported.parent.exists() and list(self.imports.iterdir()) == []
        part(plane, self.id, received, self.bundle[received:])


def test_they_move_into_the_store_and_are_gone_on_with(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_files, "PART_BYTES", 1000)
    former = Former(plane, received=2500)
    assert former.fetched().status_code == 410
    for _ in range(2):
        former.adopt()
    former.check(2500)


@pytest.mark.parametrize("name", ["upload", "written", "export"])
def test_a_move_that_is_killed_is_gone_on_with(plane: Plane, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """With the file written, and nothing made of it."""
    former = Former(plane, received=100)
    whole: Callable[..., Any] = adoption._Move._copied

    def killed(move: Any, file: Path, kind: Any, owner: str) -> Any:
        copied = whole(move, file, kind, owner)
        if kind == {"written": "import"}.get(name, name):
            raise Killed
        return copied

    with monkeypatch.context() as patched:
        patched.setattr(adoption._Move, "_copied", killed)
        with pytest.raises(Killed):
            former.adopt()
    former.adopt()
    former.check(100)


def test_what_cannot_be_moved_stops_nothing(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    former = Former(plane, received=100)
    former.exported.write_bytes(b"changed")
    (former.imports / f"{former.id}.json").write_text("not one")
    former.adopt()
    assert former.fetched().status_code == 410
    assert plane.get("/v1/imports")["items"] == []
    assert "is not what was exported any more" in caplog.text
    assert "does not say what the upload is" in caplog.text
