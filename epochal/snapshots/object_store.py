"""Files of an object store: S3 and compatible stores, Google Cloud Storage and Azure Blob Storage, through ``obstore``.

An object becomes visible as a whole with one request, so files need no temporary names. Credentials and endpoint:
:mod:`epochal.snapshots.store_credentials`.

Requests that fail with a server error, or whose connection breaks, are repeated for :data:`PATIENCE_SECONDS`.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import IO, Any, Final
from urllib.parse import urlsplit

import obstore
from obstore import exceptions
from obstore.store import from_url

from epochal.snapshots.remote_files import Data, RemoteFiles
from epochal.snapshots.store_credentials import connection_settings, endpoint_of

PATIENCE_SECONDS: Final = 20.0
"""Time in which a failing request is repeated."""
_CONNECT_SECONDS = 5
_STALLED_SECONDS = 10.0
_PROBE_PATIENCE_SECONDS = 1.0
_REQUEST_SECONDS = 600
_PART_BYTES = 16 << 20
"""Larger files are uploaded in parts."""
_BUFFER_BYTES = 1 << 20
_PAGE = 1000
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_SERVERS_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_FAILED = re.compile(r"(?:, after | - )(?P<reason>[^\n]+)")
_REFUSED = frozenset({301, 307, 400, 401, 403, 501})
_BEYOND_THE_END = 416
_WRONG_REGION = "redirect without LOCATION"
"""In the library's text for a redirect of S3 to another region, whose answer it drops."""
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
_REMEDIES: Final[Mapping[str, str]] = {
    "NoSuchBucket": "Create the bucket, or correct its name",
    "ContainerNotFound": "Create the container, or correct its name",
    "InvalidAccessKeyId": "Correct the access key (AWS_ACCESS_KEY_ID, or the profile)",
    "SignatureDoesNotMatch": "Correct the secret access key (AWS_SECRET_ACCESS_KEY, or the profile)",
    "ExpiredToken": "Renew the session token (AWS_SESSION_TOKEN)",
    "RequestTimeTooSkewed": "Set the clock of this machine, for example by NTP",
    "AuthorizationHeaderMalformed": "Set AWS_REGION to the bucket's region",
    "PermanentRedirect": "Set AWS_REGION to the bucket's region, or correct the endpoint",
    "AccessDenied": "Grant the credentials read, write, list and delete on the prefix",
    "NotImplemented": "Use a store with conditional writes (If-None-Match)",
}
_NO_CREDENTIALS = ("credential", "metadata", "token")
_kept: dict[tuple[int, str], ObjectStoreFiles] = {}
"""Clients by process and URL. A client has a pool of connections and caches credentials."""


@dataclass(frozen=True)
class Bucket:
    """A bucket, or container, and the prefix of the files."""

    scheme: str
    name: str
    prefix: str

    @classmethod
    def of(cls, url: str) -> Bucket:
        """The bucket of a URL such as ``s3://bucket/prefix``. Raises ``ValueError`` for a URL without a bucket."""
        parts = urlsplit(url)
        if not parts.netloc or parts.query or parts.fragment:
            raise ValueError(f"{url} does not name a bucket: use {parts.scheme}://bucket/prefix")
        return cls(parts.scheme, parts.netloc, parts.path.strip("/"))


@dataclass(frozen=True)
class ObjectStatus:
    """An object. ``version`` is its entity tag without quotation marks; it changes with the content."""

    path: str
    size: int
    modified: datetime
    version: str

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> ObjectStatus:
        return cls(found["path"], found["size"], found["last_modified"], _version(found))


class ObjectStoreFiles(RemoteFiles):
    """The objects below a prefix. Safe to use from several threads, not from a forked process."""

    def __init__(
        self,
        url: str,
        patience_seconds: float,
        stalled_seconds: float | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """``patience_seconds``: time in which a failing request is repeated. ``stalled_seconds``: time without a byte
        from the server after which a request has failed. ``settings``: the library's settings of the store, such as
        ``endpoint``, which take precedence over the environment."""
        self._url = url
        self._settings = dict(settings or {})
        self._store = _connected(Bucket.of(url), patience_seconds, stalled_seconds or _STALLED_SECONDS, self._settings)
        self._probing: ObjectStoreFiles | None = None

    def write(self, path: str, data: Data) -> None:
        with self._system_errors(path):
            obstore.put(self._store, path, memoryview(data).cast("B"), chunk_size=_PART_BYTES)

    def create(self, path: str, data: bytes) -> None:
        with self._system_errors(path):
            obstore.put(self._store, path, data, mode="create")

    def read(self, path: str) -> bytes:
        with self._system_errors(path):
            return bytes(obstore.get(self._store, path).bytes())

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self._read_range(path, offset, size) for offset, size in ranges]

    def _read_range(self, path: str, offset: int, size: int) -> bytes:
        return self._read_part(path, {"range": (offset, offset + size)}) if size else b""

    def read_from(self, path: str, offset: int) -> bytes:
        return self._read_part(path, {"range": {"offset": offset}})

    def open(self, path: str, size: int) -> Any:
        return io.BufferedReader(
            _RangeReader(lambda offset, length: self._read_range(path, offset, length), size), _BUFFER_BYTES
        )

    def size(self, path: str) -> int:
        with self._system_errors(path):
            return int(obstore.head(self._store, path)["size"])

    def delete(self, path: str) -> None:
        with self._system_errors(path):
            obstore.delete(self._store, path)

    def list(self, folder: str) -> list[str]:
        return [path for path, _, _ in self.entries(folder)]

    def entries(self, folder: str) -> Sequence[tuple[str, int, Any]]:
        with self._system_errors(folder):
            return [
                (object["path"], object["size"], object["last_modified"])
                for page in obstore.list(self._store, folder or None)
                for object in page
            ]

    def objects(self, folder: str, after: str | None = None) -> Iterator[ObjectStatus]:
        """The objects below a folder, ``""`` for all; on S3 in the order of their names. ``after``: only greater names
        (paths as in :class:`ObjectStatus`). One request per 1,000 objects, as the caller iterates."""
        with self._system_errors(folder):
            try:
                for page in obstore.list(self._store, folder or None, offset=after, chunk_size=_PAGE):
                    yield from map(ObjectStatus.of, page)
            except ValueError as error:
                raise OSError(errno.EINVAL, f"a name cannot be read: {error}", folder) from error

    def status(self, path: str) -> ObjectStatus | None:
        """The object, if it exists."""
        try:
            with self._system_errors(path):
                return ObjectStatus.of(obstore.head(self._store, path))
        except FileNotFoundError:
            return None

    def read_version(self, path: str, version: str, offset: int, size: int) -> bytes:
        """A range of an object; fewer bytes if it ends earlier. Raises ``FileExistsError`` unless the object has this
        version; ``""``: any version."""
        options: Any = {"range": (offset, offset + size)}
        if version:
            options["if_match"] = _quoted(version)
        return self._read_part(path, options)

    def _read_part(self, path: str, options: Any) -> bytes:
        try:
            with self._system_errors(path):
                return bytes(obstore.get(self._store, path, options=options).bytes())
        except _BeyondTheEnd:
            return b""

    def read_with_version(self, path: str) -> tuple[bytes, str]:
        """All bytes of an object, and its version."""
        with self._system_errors(path):
            found = obstore.get(self._store, path)
            return bytes(found.bytes()), _version(found.meta)

    def replace(self, path: str, data: bytes, version: str) -> None:
        """Write an object if its present version is ``version``. Raises ``FileExistsError`` if it is not, also after an
        attempt of this call whose answer was lost."""
        with self._system_errors(path):
            obstore.put(self._store, path, data, mode={"e_tag": _quoted(version)})

    def upload(self, path: str, file: IO[bytes]) -> str:
        """Write an object from a file, from its beginning; large ones in parts. Returns the version."""
        with self._system_errors(path):
            file.seek(0)
            return _version(obstore.put(self._store, path, file, chunk_size=_PART_BYTES))

    def probe(self, path: str) -> None:
        if self._probing is None:
            self._probing = ObjectStoreFiles(
                self._url, _PROBE_PATIENCE_SECONDS, _PROBE_PATIENCE_SECONDS, self._settings
            )
        self._probing.read(path)

    def remove_empty_folder(self, folder: str) -> None:
        """Nothing: an object store has no folders."""

    @contextmanager
    def _system_errors(self, path: str) -> Iterator[None]:
        """Translate the library's errors in the block into ``OSError``, without keys and tokens."""
        try:
            yield
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            raise FileExistsError(errno.EEXIST, "the object exists, or has changed", path) from error
        except (exceptions.BaseError, FileNotFoundError) as error:
            raise _translated(str(error), path, isinstance(error, FileNotFoundError)) from error


def object_store_files(url: str) -> ObjectStoreFiles:
    """Files below a URL; one client per process. Raises ``OSError``."""
    key = (os.getpid(), url)
    files = _kept.get(key)
    if files is None:
        files = _kept[key] = ObjectStoreFiles(url, PATIENCE_SECONDS)
    return files


class _RangeReader(io.RawIOBase):
    """A file of ``size`` bytes; ``read_range`` returns the bytes of a range (offset, number of bytes)."""

    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        self._read_range = read_range
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        data = self._read_range(self._at, max(0, min(len(target), self._size - self._at)))
        target[: len(data)] = data
        self._at += len(data)
        return len(data)


class _BeyondTheEnd(OSError):
    """A range that begins beyond the end of the object."""


def _version(found: Mapping[str, Any]) -> str:
    return str(found.get("e_tag") or "").strip('"')


def _quoted(version: str) -> str:
    return version if version.startswith("W/") else f'"{version}"'


def _connected(bucket: Bucket, patience_seconds: float, stalled_seconds: float, settings: Mapping[str, Any]) -> Any:
    client = {
        "connect_timeout": min(_CONNECT_SECONDS, stalled_seconds),
        "read_timeout": stalled_seconds,
        "timeout": _REQUEST_SECONDS,
    }
    options: Any = {
        **connection_settings(bucket.scheme, settings),
        "client_options": {name: timedelta(seconds=seconds) for name, seconds in client.items()}
        | {"allow_http": endpoint_of(bucket.scheme, settings).startswith("http://")},
        "retry_config": {
            "max_retries": 1000,
            "retry_timeout": timedelta(seconds=patience_seconds),
            "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
        },
    }
    scheme = "gs" if bucket.scheme == "gcs" else bucket.scheme
    try:
        return from_url(f"{scheme}://{bucket.name}/{bucket.prefix}", **options)
    except (exceptions.BaseError, ValueError) as error:
        raise PermissionError(errno.EACCES, _first_line(str(error)), bucket.name) from error


def _translated(text: str, path: str, is_missing: bool) -> OSError:
    status = next((int(found) for found in _STATUS.findall(text)), None)
    code = next(iter(_CODE.findall(text)), "PermanentRedirect" if _WRONG_REGION in text else None)
    if is_missing and code not in _NO_BUCKET:
        return FileNotFoundError(errno.ENOENT, "there is no such object", path)
    if status == _BEYOND_THE_END:
        return _BeyondTheEnd(errno.EINVAL, "the range begins beyond the end of the object", path)
    reason = _reason(text, status, code)
    if status in _REFUSED or code in _REMEDIES or "lacked the necessary" in text or "not authenticated" in text:
        remedy = _REMEDIES.get(code or "", "Correct the credentials, their permissions, or the store's settings")
        return PermissionError(errno.EACCES, f"{reason}. {remedy}", path)
    if status is None and any(word in text.lower() for word in _NO_CREDENTIALS):
        return PermissionError(
            errno.EACCES,
            f"no credentials were found: {reason}. Set them in the environment",
            path,
        )
    return ConnectionError(errno.EHOSTUNREACH, reason, path)


def _reason(text: str, status: int | None, code: str | None) -> str:
    """One line of an error's text: the server's code and message, or the failure of the connection."""
    if code is not None:
        message = next(iter(_SERVERS_MESSAGE.findall(text)), "").strip().rstrip(".")
        return f"{code}: {message}" if message else code
    if status is not None:
        return f"the server answers with status {status}"
    failed = _FAILED.search(text)
    return failed["reason"].rpartition(" - ")[2] if failed else _first_line(text)


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "unknown error")
