"""Truncated, altered, foreign and hostile bundles are refused with a message of one line, and leave nothing behind."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from epochal.service.commands.bundles import unpacking
from epochal.service.domain.settings import Settings
from epochal.snapshots.bundle_format import BundleError
from epochal.snapshots.bundle_reading import BundleReader
from tests.service.backups import started
from tests.service.bundles import exported, imported, members, packed, refused, uploaded, with_state
from tests.service.conftest import Plane, free_port

Members = list[tuple[tarfile.TarInfo, bytes]]


def control_plane(folder: Path) -> AbstractContextManager[Plane]:
    return started(Settings(data=folder, port=free_port()))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bundle of an application with three epochs."""
    with control_plane(tmp_path_factory.mktemp("exporting")) as plane:
        with_state(plane, packs=True)
        return exported(plane)


@pytest.fixture
def parts(bundle: bytes) -> Members:
    """The members of ``bundle``, for a test to alter."""
    return members(bundle)


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A control plane that never has an application."""
    with control_plane(tmp_path_factory.mktemp("refusing")) as plane:
        yield plane


@pytest.mark.alternating(2)
def test_truncated_bundles_are_refused(bundle: bytes, parts: Members, refusing: Plane, tmp_path: Path) -> None:
    cut = [bundle[:length] for length in (3, 100, len(bundle) // 2, len(bundle) - 60)]
    for short in [*cut, *(packed(parts[:count]) for count in range(1, len(parts)))]:
        check_unreadable(short, tmp_path)
    for short in (cut[2], packed(parts[:-1])):
        status, slug, _ = refused(refusing, short)
        assert (status, slug) == (422, "invalid-bundle")


@pytest.mark.alternating(2)
def test_altered_bundles_are_refused(parts: Members, refusing: Plane, tmp_path: Path) -> None:
    """The reader is tested with every member, the service, which uses the reader, with one member of each kind."""
    kinds = set[str]()
    for index, (about, data) in enumerate(parts):
        altered = list(parts)
        altered[index] = (about, data[:-1] + bytes([data[-1] ^ 1]))
        check_unreadable(packed(altered), tmp_path)
        check_unreadable(packed(parts[:index] + parts[index + 1 :]), tmp_path)
        if (kind := about.name.partition("/")[0]) not in kinds:
            kinds.add(kind)
            status, slug, detail = refused(refusing, packed(altered))
            assert (status, slug) == (422, "invalid-bundle"), about.name
            assert len(detail.splitlines()) == 1
    assert kinds == {"bundle.json", "epochs.jsonl", "artifacts", "manifests", "packs", "files", "end.json"}


def check_unreadable(bundle: bytes, folder: Path) -> None:
    (folder / "bundle").write_bytes(bundle)
    with pytest.raises(BundleError):
        read(folder / "bundle")


def read(bundle: Path) -> None:
    with TemporaryDirectory(dir=bundle.parent) as folder, BundleReader(bundle, Path(folder)) as reader:
        list(reader.epochs())
        list(reader.members())


def signed(parts: Members, **changes: Any) -> Members:
    """Change the header and adapt the checksums."""
    (header, data), *others, (end, last) = parts
    changed = json.dumps({**json.loads(data), **changes}).encode()
    fitting = json.dumps({**json.loads(last), "header_sha256": hashlib.sha256(changed).hexdigest()}).encode()
    return [(header, changed), *others, (end, fitting)]


def test_a_bundle_that_does_not_name_its_application_is_refused(parts: Members, refusing: Plane) -> None:
    status, slug, detail = refused(refusing, packed(signed(parts, applications={})))
    assert (status, slug) == (422, "invalid-bundle")
    assert "does not have the name of application" in detail


def test_invalid_names_in_a_bundle_are_refused(parts: Members, refusing: Plane, tmp_path: Path) -> None:
    """Names are shown to people, and become names of applications."""
    header = json.loads(parts[0][1])
    for wrong in ("\x1b[2Jflights", "flights\nother", "a.b.flights", "Flights", "../flights", ""):
        origin = {**header["origin"], "application": wrong}
        check_unreadable(packed(signed(parts, origin=origin)), tmp_path)
        bundle = packed(signed(parts, applications=dict.fromkeys(header["applications"], wrong)))
        check_unreadable(bundle, tmp_path)
    status, slug, detail = refused(refusing, bundle)
    assert (status, slug) == (422, "invalid-bundle") and "is not the name of an application" in detail


@pytest.mark.long
def test_a_refused_bundle_does_not_affect_later_imports(bundle: bytes, parts: Members, other: Plane) -> None:
    """The valid bundle is imported although the refused one described the same branch differently, and a bundle that
    does not name its application is still refused."""
    header = json.loads(parts[0][1])
    branches = [{**branch, "created_by": "mallory"} for branch in header["branches"]]
    *altered, (about, data), end = signed(parts, branches=branches)
    assert about.name.startswith("files/")
    assert refused(other, packed([*altered, (about, data[:-1] + bytes([data[-1] ^ 1])), end]))[0] == 422
    failed = other.get("/v1/operations")["items"][0]
    assert (failed["kind"], failed["state"], failed["application"]) == ("import", "failed", "flights")

    status, _, detail = refused(other, packed(signed(parts, applications={})))
    assert status == 422 and "does not have the name of application" in detail
    assert imported(other, bundle)["state"] == "succeeded"
    assert other.get("/v1/operations", application="flights")["items"][0]["state"] == "succeeded"
    path = f"/v1/imports/{uploaded(other, packed(signed(parts, applications={})))}/application"
    answer = other.client.post(path, json={"name": "copy", "parameters": {"out": "/copy"}})
    assert (answer.status_code, "does not have the name of application" in answer.json()["detail"]) == (422, True)


@pytest.mark.long  # other tests cover altered bundles and newer manifests
def test_foreign_and_newer_files_are_refused(parts: Members, refusing: Plane) -> None:
    header, data = parts[0]
    newer = packed([(header, data.replace(b'"format":1', b'"format":7')), *parts[1:]])
    reads = "The bundle has format 7; this version of Epochal reads 1: upgrade Epochal."
    assert refused(refusing, newer) == (422, "invalid-bundle", reads)
    foreign = packed([(header, data.replace(b"epochal-bundle", b"another-bundle")), *parts[1:]])
    assert "not a bundle of Epochal" in refused(refusing, foreign)[2]
    for content in (b"PK\x03\x04 a zip", b"", b"\x28\xb5\x2f\xfd nothing"):
        assert refused(refusing, content or b"x")[1] == "invalid-bundle"


def test_a_bundle_with_a_newer_manifest_is_refused(parts: Members, refusing: Plane) -> None:
    """The checksums are valid."""
    place = next(number for number, part in enumerate(parts) if part[0].name.startswith("manifests/"))
    manifest, data = parts[place]
    later = data.replace(b'"format":1', b'"format":2')
    before, after = manifest.name.rpartition("/")[2], hashlib.sha256(later).hexdigest()
    manifest.name = f"manifests/{after}"
    (header, about), (end, last) = parts[0], parts[-1]
    signed = about.replace(before.encode(), after.encode())
    ended = json.dumps({**json.loads(last), "header_sha256": hashlib.sha256(signed).hexdigest()}).encode()
    parts[place], parts[0], parts[-1] = (manifest, later), (header, signed), (end, ended)
    status, slug, detail = refused(refusing, packed(parts))
    assert (status, slug) == (422, "invalid-bundle")
    assert "has format 2; this version of Epochal reads 1: upgrade Epochal." in detail


def test_bundle_members_cannot_escape_the_folder(parts: Members, refusing: Plane, tmp_path: Path) -> None:
    """The reader is tested with every name, the service, which uses the reader, with one."""
    for name in ("../../etc/passwd", "/etc/passwd", "files/../x", "files/" + "g" * 64, "CON"):
        bundle = packed([*parts[:2], (tarfile.TarInfo(name), b"mine"), *parts[2:]])
        check_unreadable(bundle, tmp_path)
        if name == "../../etc/passwd":
            assert refused(refusing, bundle)[1] == "invalid-bundle"


def test_bundle_members_other_than_files_are_refused(parts: Members, refusing: Plane, tmp_path: Path) -> None:
    for type in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE):
        about = tarfile.TarInfo("files/" + "0" * 64)
        about.type, about.linkname = type, "/etc/passwd"
        bundle = packed([*parts[:2], (about, b""), *parts[2:]])
        check_unreadable(bundle, tmp_path)
        if type == tarfile.SYMTYPE:
            assert refused(refusing, bundle)[1] == "invalid-bundle"


SMALL_LIMIT = 192 << 20
BOMBS = {
    "epochs.jsonl": bytes(63 << 20),
    "epochs.jsonl beyond its limit": bytes(65 << 20),
    "epochs.jsonl of empty lines": b"\n" * (63 << 20),
    "epochs.jsonl of one epoch": None,
    "bundle.json": b'{"kind": "epochal-bundle", "format": 1, "made_by": [' + b"{}," * (1 << 20),
    "bundle.json beyond its limit": bytes(5 << 20),
    "files/": bytes(200 << 20),
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.alternating(2)
def test_decompression_bombs_are_refused_within_the_memory_limit(
    parts: Members, refusing: Plane, monkeypatch: pytest.MonkeyPatch, bomb: str
) -> None:
    """The limit applies to the process that reads bundles."""
    monkeypatch.setattr(unpacking, "MEMORY_BYTES", SMALL_LIMIT)
    name, data = bomb.partition(" ")[0], BOMBS[bomb]
    if data is None:
        data = parts[1][1] * ((60 << 20) // len(parts[1][1]))
    if name == "files/":
        about = tarfile.TarInfo("files/" + "0" * 64)
        small = packed([*parts[:-1], *[(about, data)] * 2, parts[-1]])
    else:
        small = packed([(about, data if about.name == name else old) for about, old in parts])
    assert len(small) < 200_000
    status, slug, detail = refused(refusing, small)
    assert (status, slug) == (422, "invalid-bundle")
    assert "Traceback" not in detail and len(detail.splitlines()) == 1


def test_a_valid_bundle_is_imported_within_the_memory_limit(
    bundle: bytes, plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "MEMORY_BYTES", SMALL_LIMIT)
    assert imported(plane, bundle)["state"] == "succeeded"


def test_a_bundle_with_more_members_than_declared_is_refused(parts: Members, refusing: Plane) -> None:
    code = next(part for part in parts if part[0].name.startswith("artifacts/"))
    assert "more members" in refused(refusing, packed([*parts[:2], *[code] * 50, *parts[2:]]))[2]
