"""The operations on HDFS that the sink and the source need, and the translation of its errors.

Over WebHDFS, with the ``hdfs`` package. Errors are the package's ``HdfsError`` or those of requests; :func:`translated`
converts them to Epochal's, where the caller names the action.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import requests
from hdfs import HdfsError

from epochal.backends.hdfs.address import HdfsAddress
from epochal.errors import EpochalError, OutcomeUnknown, SinkError, SinkUnavailable, StorageFull

ANSWERS = (HdfsError, requests.RequestException)
"""Errors of an operation: refused by the server, or without an answer."""


@dataclass(frozen=True)
class FileStatus:
    """Status of a file or folder at the NameNode. Renames preserve ``file_id``; ``modified_ms`` is since 1970."""

    path: str
    is_folder: bool
    length: int
    modified_ms: int
    file_id: int

    @classmethod
    def from_answer(cls, path: str, answer: dict[str, Any]) -> FileStatus:
        return cls(
            path=path,
            is_folder=answer["type"] == "DIRECTORY",
            length=int(answer["length"]),
            modified_ms=int(answer["modificationTime"]),
            file_id=int(answer["fileId"]),
        )


class WebHdfs:
    """Connection of one process to HDFS. Serialisable: each process opens its own connection."""

    def __init__(self, address: HdfsAddress) -> None:
        self.address = address
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None}

    @property
    def client(self) -> Any:
        """The package's client. Raises as :meth:`HdfsAddress.connect`."""
        if self._client is None:
            self._client = self.connect()
        return self._client

    def connect(self) -> Any:
        """Create a client; tests replace it by one that loses responses."""
        return self.address.connect()

    def status(self, path: str) -> FileStatus | None:
        """Return the status of a path; ``None`` if it does not exist."""
        try:
            return FileStatus.from_answer(path, self.client.status(path))
        except HdfsError as error:
            if is_missing(error):
                return None
            raise

    def list(self, folder: str) -> dict[str, FileStatus]:
        """List a folder by name; empty if it does not exist."""
        try:
            found = self.client.statuses(folder)
        except HdfsError as error:
            if is_missing(error):
                return {}
            raise
        statuses = (FileStatus.from_answer(posixpath.join(folder, answer["pathSuffix"]), answer) for answer in found)
        return {posixpath.basename(status.path): status for status in statuses}

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents, if missing."""
        self.client.makedirs(path)

    def create(self, path: str, data: bytes | Iterator[bytes | memoryview]) -> None:
        """Create a file; fails if it exists. Success does not guarantee its length: check its status."""
        self.client.write(path, data=data, overwrite=False)

    def move(self, source: str, destination: str) -> None:
        """Rename to exactly ``destination``, which must not exist. Atomic."""
        self.client.move(source, destination)

    def replace(self, source: str, destination: str) -> None:
        """Rename a file, replacing an existing one. Atomic."""
        self.client.replace(source, destination)

    def delete_folder(self, path: str) -> None:
        """Delete a folder with its content, if it exists."""
        self.client.delete(path, recursive=True)

    def delete(self, path: str) -> bool:
        """Delete a file or an empty folder; ``False`` if it did not exist."""
        return bool(self.client.delete(path))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of a file, to its end or ``length`` of them."""
        with self.client.read(path, offset=offset, length=length, chunk_size=1024 * 1024) as pieces:
            return b"".join(pieces)

    def pieces(self, path: str, size: int) -> Iterator[bytes]:
        """A file from its beginning to its end, in pieces of ``size`` bytes."""
        with self.client.read(path, chunk_size=size) as pieces:
            yield from pieces

    def check_access(self, path: str, permission: str) -> None:
        """Raises the server's error unless the caller has ``permission`` (``rwx``) on the path."""
        self.client.check_access(path, permission)


def is_missing(error: HdfsError) -> bool:
    """Return whether the error reports a missing file or folder."""
    return getattr(error, "exception", None) == "FileNotFoundException"


@contextmanager
def translated(
    subject: str, what: str, kind: type[EpochalError] = SinkError, waits: type[EpochalError] = SinkUnavailable
) -> Iterator[None]:
    """Inside the block, errors of HDFS become ``kind`` or ``StorageFull``; lost answers of a commit ``OutcomeUnknown``.

    Transient errors become ``waits``. ``subject``: such as ``Sink 'out' (hdfs:nn:9870/out)``; ``what``: the step.
    """
    try:
        yield
    except HdfsError as error:
        text, chosen = _refusal(error, kind, waits)
        raise chosen(f"{subject} could not {what}: {text}") from error
    except requests.RequestException as error:
        chosen = OutcomeUnknown if what.startswith("commit") else waits
        raise chosen(f"{subject} could not {what}: {_silence(error)}") from error


def _refusal(error: HdfsError, kind: type[EpochalError], waits: type[EpochalError]) -> tuple[str, type[EpochalError]]:
    """Return the server's refusal with the fix, and the class of the error to raise."""
    name = str(getattr(error, "exception", None) or "")
    message = error.message if isinstance(error.message, str) else bytes(error.message).decode(errors="replace")
    said = next((line.strip() for line in message.splitlines() if line.strip()), "").rstrip(".")
    if "SafeMode" in name or "safe mode" in message:
        text = (
            "the NameNode is in safe mode and accepts no changes. The step is retried; if safe mode does not end, see "
            "'hdfs dfsadmin -safemode get' and the NameNode's log."
        )
        return text, waits
    if "QuotaExceeded" in name:
        return f"a quota is exceeded: {said}. Raise it, or free some space; the step is retried.", StorageFull
    if name in ("AccessControlException", "SecurityException"):
        return f"{said}. Grant the user this permission, or set another user with user=.", kind
    if name in ("StandbyException", "RetriableException"):
        return f"no NameNode is active ({said}). List all NameNodes in url, separated by ';'.", waits
    if "Failed to find datanode" in message or "could only be written to" in message:
        return f"no DataNode accepts the file ({said}). Check that DataNodes are running and have space.", waits
    if "Token" in name or "Authentication" in message:
        return f"HDFS rejects the credentials ({said}). Renew the token, or log in (kinit).", kind
    if is_missing(error):
        return f"{said}. Create it, or correct the path.", kind
    if not name and not said.startswith("'"):
        return "the server is not WebHDFS. Set url to the NameNode's HTTP address: 'http://namenode:9870'.", kind
    return f"{said}.", kind


def _silence(error: requests.RequestException) -> str:
    """Message for a missing response. It omits the error's own text, which contains the address with the token."""
    request = error.request
    server = urlsplit(str(request.url)).netloc if request is not None else "the server"
    if isinstance(error, requests.Timeout):
        return f"{server} does not answer in time. Check that it is running; the step is retried."
    return f"{server} cannot be reached ({_innermost(error)}). Check that it is running and that url names it."


def _innermost(error: BaseException) -> str:
    """The operating system's message, if any: ``Connection refused``."""
    seen: list[BaseException] = []
    pending: list[object] = [error]
    while pending:
        current = pending.pop()
        if isinstance(current, BaseException) and current not in seen:
            seen.append(current)
            if isinstance(current, OSError) and current.strerror and not isinstance(current, requests.RequestException):
                return current.strerror
            pending += [current.__cause__, current.__context__, getattr(current, "reason", None), *current.args]
    return type(error).__name__
