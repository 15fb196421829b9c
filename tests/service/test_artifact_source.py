"""The source of artifacts over HTTP, by the client and on the command line; hostile archives."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from epochal.cli.main import app
from epochal.client import Client
from epochal.service.queries.sources import LARGEST_ANSWER, LARGEST_TEXT
from epochal.snapshots.store import SnapshotStore
from tests.service.problems import check_problem

if TYPE_CHECKING:
    from tests.service.conftest import Plane

CODE = "# é <script>\npipeline = None\n"


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return stream.getvalue()


def uploaded(plane: Plane, filename: str, content: bytes) -> str:
    answer = plane.client.post("/v1/artifacts", params={"filename": filename}, content=content)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["sha256"])


def files(plane: Plane, sha256: str, **query: str) -> dict[str, Any]:
    answer = plane.get(f"/v1/artifacts/{sha256}/source", **query)
    return {file["path"]: file["text"] if file["omitted"] is None else file["omitted"] for file in answer["files"]}


def test_a_file_and_the_files_of_a_zip_are_read(plane: Plane) -> None:
    sha256 = uploaded(plane, "flights.py", CODE.encode())
    assert plane.get(f"/v1/artifacts/{sha256}/source") == {
        "sha256": sha256,
        "filename": "flights.py",
        "files": [{"path": "flights.py", "bytes": len(CODE.encode()), "text": CODE, "omitted": None}],
    }
    assert files(plane, sha256, file="flights.py") == {"flights.py": CODE}
    content = zipped(("data.csv", b"1,2"), ("pipeline.py", CODE.encode()), ("parts/", b""), ("parts/a b.py", b""))
    sha256 = uploaded(plane, "flights.zip", content)
    assert list(files(plane, sha256).items()) == [("parts/a b.py", ""), ("pipeline.py", CODE), ("data.csv", "1,2")]
    assert files(plane, sha256, file="parts/a b.py") == {"parts/a b.py": ""}


def test_only_exact_paths_are_found(plane: Plane) -> None:
    single = uploaded(plane, "flights.py", CODE.encode())
    archive = uploaded(plane, "flights.zip", zipped(("pipeline.py", CODE.encode()), ("parts/a.py", b"a = 1")))
    for sha256 in (single, archive):
        for path in ("none.py", "../pipeline.py", "/etc/passwd", "parts/../pipeline.py", "parts", "", "PIPELINE.PY"):
            answer = plane.client.get(f"/v1/artifacts/{sha256}/source", params={"file": path})
            check_problem(answer, 404, "not-found")
    check_problem(plane.client.get(f"/v1/artifacts/{'0' * 64}/source"), 404, "not-found")
    assert plane.client.get("/v1/artifacts/..%2f..%2fetc/source").status_code == 404


def test_files_that_are_no_text_are_omitted(plane: Plane) -> None:
    content = zipped(("pipeline.py", CODE.encode()), ("latin.py", "# é".encode("latin-1")), ("model.bin", b"\xff\0"))
    found = files(plane, uploaded(plane, "flights.zip", content))
    assert found == {"latin.py": "not_text", "model.bin": "not_text", "pipeline.py": CODE}


def test_large_files_are_omitted_and_the_answer_is_bounded(plane: Plane) -> None:
    bomb = zipped(
        *((f"part{number}.py", b"#" * LARGEST_TEXT) for number in range(4)), ("z.py", b"#" * (LARGEST_TEXT + 1))
    )
    sha256 = uploaded(plane, "bomb.zip", bomb)
    found = files(plane, sha256)
    assert [len(text) for text in found.values() if text != "too_large"] == [LARGEST_TEXT] * (
        LARGEST_ANSWER // LARGEST_TEXT
    )
    assert list(files(plane, sha256, file="part3.py").values()) == ["#" * LARGEST_TEXT]
    assert files(plane, sha256, file="z.py") == {"z.py": "too_large"}


def test_a_zip_that_declares_wrong_sizes_is_not_unpacked_beyond_the_limit(plane: Plane) -> None:
    content = bytearray(zipped(("pipeline.py", b"#" * (8 << 20)), ("good.py", b"good = 1")))
    # The size in the central directory, which the reader trusts, becomes 100 bytes.
    record = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02"))
    content[record + 24 : record + 28] = (100).to_bytes(4, "little")
    found = files(plane, uploaded(plane, "bomb.zip", bytes(content)))
    assert found == {"good.py": "good = 1", "pipeline.py": "unreadable"}


def test_damaged_and_unusual_members_are_omitted(plane: Plane) -> None:
    content = bytearray(zipped(("broken.py", b"broken = 1"), ("good.py", b"good = 1"), method=zipfile.ZIP_STORED))
    at = content.index(b"broken = 1")
    content[at : at + 6] = b"BROKEN"
    assert files(plane, uploaded(plane, "a.zip", bytes(content))) == {"broken.py": "unreadable", "good.py": "good = 1"}
    packed = zipped(("pipeline.py", b"a = 1"), method=zipfile.ZIP_LZMA)
    assert files(plane, uploaded(plane, "b.zip", packed)) == {"pipeline.py": "unreadable"}


def test_the_last_of_two_members_with_one_path_is_shown(plane: Plane) -> None:
    """As unpacking does, so that the shown code is the code that runs."""
    with pytest.warns(UserWarning, match="Duplicate name"):
        content = zipped(("pipeline.py", b"first"), ("pipeline.py", b"second"), ("./parts//a.py", b"a"))
    assert files(plane, uploaded(plane, "a.zip", content)) == {"parts/a.py": "a", "pipeline.py": "second"}


def test_viewers_and_other_projects_cannot_read_code(plane: Plane) -> None:
    sha256 = uploaded(plane, "flights.py", CODE.encode())
    path = f"/v1/artifacts/{sha256}/source"
    check_problem(plane.as_bearer(plane.token("viewer")).get(path), 403, "forbidden")
    answer = plane.as_bearer(plane.token("operator")).get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert plane.client.post("/v1/projects", json={"name": "pricing"}).status_code == 201
    check_problem(plane.client.get(f"/v1/projects/pricing/artifacts/{sha256}/source"), 404, "not-found")


def test_a_lost_file_is_reported(plane: Plane) -> None:
    sha256 = uploaded(plane, "flights.py", CODE.encode())
    store = SnapshotStore(plane.settings.store_url)
    for each in store.list("artifacts"):
        store.delete(each)
    problem = check_problem(plane.client.get(f"/v1/artifacts/{sha256}/source"), 422, "invalid-artifact")
    assert "upload the same file again" in problem["detail"]


def test_the_client_and_the_command_line_print_code(plane: Plane) -> None:
    single = uploaded(plane, "flights.py", CODE.encode())
    archive = uploaded(plane, "flights.zip", zipped(("pipeline.py", CODE.encode()), ("model.bin", b"\xff")))
    with Client(plane.settings.url, plane.admin_token) as client:
        assert [file.text for file in client.artifacts.source(single).files] == [CODE]
        assert client.artifacts.source(archive, "model.bin").files[0].omitted == "not_text"

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["artifacts", "source", *arguments], env=plane.environment)
        return result.output or str(result.exception)

    assert run(single[:12]) == CODE
    assert run(archive, "pipeline.py") == CODE
    assert "not text" in run(archive)
    assert "cannot be shown: not text" in run(archive, "model.bin")
