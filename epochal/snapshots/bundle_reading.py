"""Reading an untrusted bundle. Files and code are written to a folder in pieces and are never held in memory.

Bundles come from outside: a control plane reads them in a process with limited memory and time. The reader checks the
name, kind and size of a member before it reads it, then its checksum, and that an earlier member names it. Names of
members never become paths: paths come from manifests, and must be below branches that the header names.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pydantic import BaseModel, ValidationError

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import NewerFormat
from epochal.snapshots import bundle_format as form
from epochal.snapshots import layout
from epochal.snapshots.bundle_format import BundleEnd, BundleEpoch, BundleError, BundleHeader
from epochal.snapshots.bundle_packs import PackChecks
from epochal.snapshots.bundle_writing import named_files
from epochal.snapshots.layout import FORMAT, newer_format
from epochal.snapshots.manifest import FileReference, Manifest
from epochal.snapshots.storage_errors import storage_errors

_ZSTD = b"\x28\xb5\x2f\xfd"
_BRANCH = re.compile(r"(?:[a-z][a-z0-9-]{0,19}\.)?[a-z][a-z0-9-]{0,79}")
_APPLICATION = re.compile(r"(?:[a-z][a-z0-9-]{0,19}\.)?[a-z][a-z0-9-]{0,62}")
_PIECE = 1 << 20
_LONGEST_LINE = 1 << 20
_LEAF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_TRUNCATED = "The bundle is truncated: it was not copied completely. Copy it again."

Parsed = TypeVar("Parsed", bound=BaseModel)


@dataclass(frozen=True)
class BundleLimits:
    """Limits of a bundle, in bytes, except for ``members``, the maximum number of members, and ``ratio``, the maximum
    ratio of unpacked to packed size (``small`` is always allowed). A file must have the size in its manifest, at most
    ``file``, as must a pack."""

    header: int = 4 << 20
    epochs: int = 64 << 20
    manifest: int = 16 << 20
    artifact: int = 64 << 20
    file: int = 4 << 30
    all: int = 1 << 40
    members: int = 1_000_000
    ratio: int = 1_000
    small: int = 64 << 20


@dataclass(frozen=True)
class Member:
    """A checked member. ``file``: its content; ``paths``: its paths in a store, empty for an artifact, and for a
    manifest in a pack, which is at the end of the pack."""

    kind: str
    sha256: str
    bytes: int
    file: Path
    paths: tuple[str, ...] = ()
    manifest: ManifestReference | None = None
    has_bases: bool = False
    has_checkpoints: bool = False


class BundleReader:
    """Sequential reader of a bundle; a context manager. It writes members to ``folder``, named by their checksums.

    Every method raises ``BundleError``, and ``StorageFull`` if the folder has no space left.
    """

    def __init__(self, path: Path, folder: Path, limits: BundleLimits = BundleLimits()) -> None:
        self._limits = limits
        self._folder = folder
        with path.open("rb") as file:
            if file.read(4) != _ZSTD:
                raise BundleError("This is not a bundle of Epochal. Use a file written by `epochal export`.")
        self._stream = pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")
        self._sizes = 0
        self._most = min(limits.all, max(limits.small, limits.ratio * path.stat().st_size))
        self.header = self._read_header()
        self._header_members = 0
        self._expected: ManifestReference | None = self.header.snapshot
        self._files: dict[str, list[FileReference]] = {}
        self._epochs: set[EpochKey] = set()
        self._manifests: set[EpochKey] = set()
        self._artifacts = {version.artifact for version in self.header.versions}
        self._packs = PackChecks(self.header.packs)

    def __enter__(self) -> BundleReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def epochs(self) -> Iterator[BundleEpoch]:
        """The exporting catalog's rows of the epochs, one for each manifest. They must be read first and completely."""
        found, size = self._next()
        _check_name(found, form.EPOCHS)
        _check_size(form.EPOCHS, size, self._limits.epochs)
        digest = hashlib.sha256()
        known = {branch.id for branch in self.header.branches}
        rest = b""
        for piece in self._pieces(size):
            digest.update(piece)
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                raise _altered(form.EPOCHS)
            for line in lines:
                yield self._epoch(line, known)
        if digest.hexdigest() != self.header.epochs_sha256 or rest:
            raise _altered(form.EPOCHS)

    def _epoch(self, line: bytes, known: Set[str]) -> BundleEpoch:
        epoch = _parsed(BundleEpoch, line, form.EPOCHS)
        # The number of epochs is bounded by that of the manifests, which take space in the bundle.
        if epoch.branch not in known or epoch.key in self._epochs or len(self._epochs) >= self.header.members:
            raise _altered(form.EPOCHS)
        self._epochs.add(epoch.key)
        return epoch

    def members(self) -> Iterator[Member]:
        """Manifests, artifacts, packs and files, each checked. After the last one the bundle is known to be
        complete."""
        count = 0
        while True:
            name, size = self._next()
            if name == form.END:
                break
            count += 1
            if count > min(self.header.members, self._limits.members):
                raise BundleError("The bundle has more members than its header says: it was altered.")
            yield self._member(name, size)
        end = _parsed(BundleEnd, self._data(form.END, size, self._limits.header), form.END)
        if end.header_sha256 != self._header_sha256 or not end.members == count == self.header.members:
            raise BundleError("The bundle's end does not match its header: it was altered.")
        if not self._epochs <= self._manifests:
            raise BundleError("The bundle names snapshots that it does not contain: it was altered.")
        if self._expected is not None and self._expected == self.header.snapshot:
            raise BundleError("The bundle does not contain the manifest of its snapshot: it was altered.")
        self._packs.check_all_read()

    def _read_header(self) -> BundleHeader:
        data = self._named(form.HEADER, self._limits.header)
        self._header_sha256 = hashlib.sha256(data).hexdigest()
        said = _parsed(_Said, data, form.HEADER)
        if said.kind != form.KIND:
            raise BundleError("This is not a bundle of Epochal. Use a file written by `epochal export`.")
        if said.format > FORMAT:
            raise BundleError(newer_format("The bundle", said.format).message)
        header = _parsed(BundleHeader, data, form.HEADER)
        if header.bytes > self._limits.all:
            raise BundleError(f"The bundle unpacks to {header.bytes} bytes; the maximum is {self._limits.all}.")
        if header.members > self._limits.members:
            raise BundleError(f"The bundle has {header.members} members; the maximum is {self._limits.members}.")
        for name in (header.origin.application, *header.applications.values()):
            if not _APPLICATION.fullmatch(name):
                raise BundleError(f"{name!r} is not the name of an application: the bundle was altered.")
        for branch in header.branches:
            if not _BRANCH.fullmatch(branch.id):
                raise BundleError(f"{branch.id!r} is not the id of a branch: the bundle was altered.")
            header.name_of(branch.application)
        branches = {branch.id: branch for branch in header.branches}
        for path in header.packs:
            _check_pack_path(path, branches)
        for version in header.versions:
            header.name_of(version.application)
        return header

    def _member(self, name: str, size: int) -> Member:
        kind, _, sha256 = name.rpartition("/")
        match kind + "/":
            case form.MANIFESTS:
                return self._manifest(name, size, sha256)
            case form.ARTIFACTS if sha256 in self._artifacts:
                _check_size(name, size, self._limits.artifact)
                return Member(kind, sha256, size, self._kept(name, size, sha256))
            case form.PACKS if paths := self._packs.paths(sha256):
                kept = self._kept(name, size, sha256)
                if not self._packs.matches(sha256, kept):
                    raise _altered(name)
                return Member(kind, sha256, size, kept, paths)
            case form.FILES if sha256 in self._files:
                files = self._files.pop(sha256)
                _check_size(name, size, self._limits.file)
                if any(file.bytes != size for file in files):
                    raise _altered(name)
                return Member(kind, sha256, size, self._kept(name, size, sha256), tuple(file.path for file in files))
        raise BundleError(f"No manifest or version in the bundle names the member {name}: it was altered.")

    def _manifest(self, name: str, size: int, sha256: str) -> Member:
        reference = self._expected
        if reference is None or reference.sha256 != sha256:
            raise BundleError(f"Manifest {sha256} is not the next manifest of the bundle: it was altered.")
        _check_size(name, size, self._limits.manifest)
        _check_path(reference.path, ("manifests",), self._branches)
        kept = self._kept(name, size, sha256)
        manifest = _manifest(kept.read_bytes(), name)
        if manifest.key != reference.key:
            raise _altered(name)
        self._manifests.add(manifest.key)
        in_pack = bool(layout.manifest_offset(reference.path))
        if in_pack and not self._packs.add_manifest(reference):
            raise BundleError(f"The bundle lacks the pack of manifest {sha256}: it was altered.")
        for file in named_files(manifest):
            if file.path.partition("/")[0] not in self._branches:
                continue  # a file of another branch: the importer has it or does not need it
            _check_path(file.path, ("epochs", "bases", "loops", "queries"), self._branches)
            if file.within is not None:
                _check_pack_path(file.within.path, self._branches)
                if not self._packs.add_file(file, file.within):
                    raise _altered(name)
                continue
            known = self._files.setdefault(file.sha256, [])
            if file.path not in {other.path for other in known}:
                known.append(file)
        self._expected = manifest.parent
        return Member(
            "manifests",
            sha256,
            size,
            kept,
            () if in_pack else (reference.path,),
            reference,
            bool(manifest.bases),
            bool(manifest.source_checkpoints),
        )

    @property
    def _branches(self) -> Mapping[str, object]:
        return {branch.id: branch for branch in self.header.branches}

    def _next(self) -> tuple[str, int]:
        block = self._read(form.BLOCK)
        try:
            about = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError):
            raise BundleError("The bundle cannot be read: it was damaged or altered. Get it again.") from None
        if about.type != tarfile.REGTYPE or not form.MEMBER.fullmatch(about.name):
            raise BundleError("The bundle contains an unexpected member: it was altered, or is not a bundle.")
        self._sizes += about.size
        if self._sizes > self._most:
            raise BundleError(f"The bundle unpacks to more than {self._most} bytes, the maximum for its size.")
        return about.name, about.size

    def _named(self, name: str, limit: int) -> bytes:
        found, size = self._next()
        _check_name(found, name)
        return self._data(name, size, limit)

    def _kept(self, name: str, size: int, sha256: str) -> Path:
        _check_size(name, size, self._limits.file)
        path = self._folder / sha256
        digest = hashlib.sha256()
        with storage_errors(str(path)), path.open("wb") as file:
            for piece in self._pieces(size):
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != sha256:
            raise _altered(name)
        return path

    def _data(self, name: str, size: int, limit: int) -> bytes:
        _check_size(name, size, limit)
        return b"".join(self._pieces(size))

    def _pieces(self, size: int) -> Iterator[bytes]:
        left = size
        while left:
            piece = self._read(min(left, _PIECE))
            left -= len(piece)
            yield piece
        self._read(-size % form.BLOCK)

    def _read(self, size: int) -> bytes:
        try:
            data: bytes = self._stream.read(size) if size else b""
        except MemoryError:  # Arrow's is also one of its own exceptions
            raise
        except (OSError, pa.ArrowException):
            raise BundleError("The bundle cannot be unpacked: it was damaged or altered. Get it again.") from None
        if len(data) != size:
            raise BundleError(_TRUNCATED)
        return data


class _Said(BaseModel):
    """Header fields that every format has."""

    kind: str
    format: int


def _manifest(data: bytes, name: str) -> Manifest:
    try:
        return Manifest.decode(data, name)
    except NewerFormat as error:
        raise BundleError(error.message) from None
    except ValueError:
        raise _unreadable(name) from None


def _check_path(path: str, allowed: tuple[str, ...], branches: Mapping[str, object]) -> None:
    """Check that a path is one to which a bundle may write."""
    parts = path.split("/")
    depth = {"manifests": 3, "epochs": 4, "bases": 3, "loops": 4, "queries": 3}
    if (
        len(parts) < 3
        or parts[0] not in branches
        or parts[1] not in allowed
        or len(parts) != depth[parts[1]]
        or not all(_LEAF.fullmatch(part) for part in parts[2:])
        or (parts[1] in ("epochs", "loops") and not parts[2].isdigit())
    ):
        raise BundleError(f"The bundle names the file {path!r}, which is not a file of its branches: it was altered.")


def _check_pack_path(path: str, branches: Mapping[str, object]) -> None:
    _check_path(path, ("manifests",), branches)
    if not layout.manifest_offset(path) or layout.place_of(path) is None:
        raise BundleError(f"The bundle names the pack {path!r}, which is not a pack of its branches: it was altered.")


def _check_name(found: str, name: str) -> None:
    if found != name:
        raise BundleError(f"The bundle has {found} in place of {name}: it was altered, or is not a bundle.")


def _check_size(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise BundleError(f"The bundle's {name} has {size} bytes; the maximum is {limit}.")


def _altered(name: str) -> BundleError:
    return BundleError(f"The bundle's {name} differs from the exported one: it was damaged or altered. Copy it again.")


def _parsed(model: type[Parsed], data: bytes, name: str) -> Parsed:
    try:
        return model.model_validate_json(data)
    except (ValidationError, ValueError):
        raise _unreadable(name) from None


def _unreadable(name: str) -> BundleError:
    return BundleError(f"The bundle's {name} cannot be read: it was altered, or was written by another version.")
