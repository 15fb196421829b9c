"""State of the pods that a control plane holds for work, shared by its two processes over a local socket.

One process creates the pods, assigns work to each and waits for the answer: it holds the state, in a :class:`PodDesk`.
The pods call the other process, which forwards the calls (:class:`PodDeskClient`) and has no state of its own: it may
be restarted at any time. If the first process ends, the calls of its pods are refused, and the pods end. Large files
(code, answers) are exchanged through the folder.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import socketserver
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from epochal.background.task import BackgroundTask
from epochal.errors import EnvironmentProblem, LauncherUnavailable, NotFound, Unauthenticated
from epochal.service.domain.kubernetes.pod_identity import PodIdentity
from epochal.wire.internal_api import LARGEST_ANSWER

log = logging.getLogger("epochal.launcher")

_OWNER_ONLY = 0o700
_CODE = "code"
_LONGEST_ADDRESS = 100
"""Maximum length of a socket path, in bytes; the kernels' limit is 104 or more."""
_CONNECT_SECONDS = 5.0
_POLL_SECONDS = 0.2
Operation = Literal["check", "work", "taken", "answer"]


@dataclass
class _Pod:
    reference: str | None = None
    is_ready: bool = False
    has_begun: bool = False
    is_taken: bool = False
    work: bytes | None = None
    answer: bytes | None = None


class PodDesk:
    """State of the pods of one control plane, in the process that creates them.

    ``folder``: shared by the processes of this control plane only.
    """

    _desks: ClassVar[dict[Path, PodDesk]] = {}

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pods: dict[str, _Pod] = {}
        self._changed = threading.Condition()
        self._users = 0
        self._server: _Server | None = None

    @classmethod
    def of(cls, folder: Path) -> PodDesk:
        """The desk of a folder, shared by the warm drivers and builders of one process."""
        return cls._desks.setdefault(folder, cls(folder))

    def open(self) -> None:
        """Serve the other process until every user has called :meth:`close`."""
        with self._changed:
            self._users += 1
            if self._server is None:
                self._folder.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
                _path(self._folder).unlink(missing_ok=True)
                self._server = _Server(self)
                _path(self._folder).chmod(0o600)
                BackgroundTask("pod desk", lambda server=self._server: server.serve_forever(_POLL_SECONDS))  # type: ignore[misc]

    def close(self) -> None:
        with self._changed:
            self._users -= 1
            server = self._server if self._users == 0 else None
            if server is not None:
                self._server = None
                self._desks.pop(self._folder, None)
        if server is not None:
            server.shutdown()
            server.server_close()
            _path(self._folder).unlink(missing_ok=True)

    def clear(self, prefix: str) -> None:
        """Forget the pods whose names have this prefix, including those of an earlier process."""
        names = [*self._pods, *(path.name for path in self._folder.glob(f"{prefix}*"))]
        for name in names:
            if name.startswith(prefix):
                self.forget(name)

    def expect(self, name: str) -> None:
        """Register a pod that is about to be created."""
        (self._folder / name).mkdir(mode=_OWNER_ONLY, parents=True)
        with self._changed:
            self._pods[name] = _Pod()

    def identify(self, name: str, reference: str) -> None:
        """Accept calls of the pod ``{namespace}/{name}/{uid}`` from now on."""
        self._change(name, reference=reference)

    def forget(self, name: str) -> None:
        """Refuse all further calls of the pod."""
        with self._changed:
            self._pods.pop(name, None)
            self._changed.notify_all()
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def is_ready(self, name: str) -> bool:
        """``True`` once the pod has reported that it is ready."""
        return (pod := self._pods.get(name)) is not None and pod.is_ready

    def has_begun(self, name: str) -> bool:
        """``True`` once the pod has received its work."""
        return (pod := self._pods.get(name)) is not None and pod.has_begun

    def report_ready(self, name: str) -> None:
        self._change(name, is_ready=True)

    def give(self, name: str, work: bytes, code: Mapping[str, Path] = {}) -> None:
        """Assign work to a pod. ``code``: files that it may fetch, by their sha256. Raises ``OSError``."""
        folder = self._folder / name / _CODE
        folder.mkdir(mode=_OWNER_ONLY, exist_ok=True)
        for sha256, path in code.items():
            _copy(path, folder / sha256)
        self._change(name, work=work)

    def take_for_driver(self, name: str) -> None:
        """Mark the pod as taken: the catalog is about to record its attempt."""
        self._change(name, is_taken=True)

    def answer(self, name: str) -> bytes | None:
        """The pod's answer; ``None``: it has not answered yet."""
        return None if (pod := self._pods.get(name)) is None else pod.answer

    def wait(self, name: str, seconds: float) -> None:
        """Wait for the next change of any pod, at most ``seconds``. Returns immediately if this pod has answered."""
        with self._changed:
            if (pod := self._pods.get(name)) is None or pod.answer is None:
                self._changed.wait(seconds)

    def call(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Answer a call of a pod that the other process forwards."""
        name, operation = str(request["name"]), request["operation"]
        until = time.monotonic() + float(request["seconds"])
        with self._changed:
            while True:
                pod = self._pods.get(name)
                if pod is None or pod.reference != request["reference"]:
                    return {"problem": _problem(pod)}, b""
                if request["ready"] and not pod.is_ready:
                    pod.is_ready = True
                    self._changed.notify_all()
                if operation == "work" and pod.work is not None:
                    pod.has_begun = True
                    self._changed.notify_all()
                    return {"found": True}, pod.work
                if operation == "answer" and pod.answer is None:
                    pod.answer = Path(request["file"]).read_bytes()[:LARGEST_ANSWER]
                    self._changed.notify_all()
                left = until - time.monotonic()
                if operation in ("check", "answer") or pod.is_taken or left <= 0:
                    return {"found": pod.is_taken}, b""
                self._changed.wait(left)

    def _change(self, name: str, **changes: Any) -> None:
        """Change the state of a pod; no effect if it was forgotten."""
        with self._changed:
            if (pod := self._pods.get(name)) is not None:
                for field, value in changes.items():
                    setattr(pod, field, value)
            self._changed.notify_all()


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            line = self.rfile.readline()
            if not line:
                return
            assert isinstance(self.server, _Server)
            head, content = self.server.desk.call(json.loads(line))
            self.wfile.write(json.dumps({**head, "bytes": len(content)}).encode() + b"\n" + content)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, desk: PodDesk) -> None:
        self.desk = desk
        super().__init__(_address(desk._folder), _Handler)


class PodDeskClient:
    """Forwards the calls of pods, in the process that receives them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def check(self, name: str, caller: PodIdentity) -> None:
        """Raises unless ``caller`` is the pod with this name: ``NotFound`` if this control plane has none,
        ``Unauthenticated`` for another pod, ``LauncherUnavailable`` while it is being created."""
        await self._call("check", name, caller)

    async def work(self, name: str, caller: PodIdentity, ready: bool, seconds: float) -> bytes | None:
        """The pod's work; ``None``: none within this time. Raises the errors of :meth:`check`."""
        head, content = await self._call("work", name, caller, ready, seconds)
        return content if head["found"] and content else None

    async def is_taken(self, name: str, caller: PodIdentity, ready: bool, seconds: float) -> bool:
        """Wait until the pod becomes the driver of an attempt. Raises the errors of :meth:`check`."""
        return bool((await self._call("taken", name, caller, ready, seconds))[0]["found"])

    async def answer(self, name: str, caller: PodIdentity, file: Path) -> None:
        """Submit an answer; only the first one counts. Raises the errors of :meth:`check`."""
        await self._call("answer", name, caller, file=file)

    def code(self, name: str, sha256: str) -> Path:
        """Path of a file of code. Raises ``NotFound`` unless it is part of the pod's work."""
        path = self._folder / name / _CODE / sha256
        if not path.is_file():
            raise NotFound(f"The work of this pod has no artifact {sha256}.")
        return path

    def draft(self, name: str) -> Path:
        """Create an empty file for :meth:`answer`. Raises ``NotFound``."""
        try:
            descriptor, path = tempfile.mkstemp(dir=self._folder / name, prefix=".answer-")
        except FileNotFoundError:
            raise NotFound("This control plane holds no such pod.") from None
        os.close(descriptor)
        return Path(path)

    async def _call(
        self,
        operation: Operation,
        name: str,
        caller: PodIdentity,
        ready: bool = False,
        seconds: float = 0.0,
        file: Path | None = None,
    ) -> tuple[dict[str, Any], bytes]:
        request = {"operation": operation, "name": name, "reference": caller.reference, "ready": ready}
        line = json.dumps({**request, "seconds": seconds, "file": None if file is None else str(file)})
        try:
            reader, writer = await asyncio.open_unix_connection(_address(self._folder))
        except (FileNotFoundError, ConnectionRefusedError):
            raise NotFound("This control plane holds no pods.") from None
        try:
            writer.write(line.encode() + b"\n")
            await writer.drain()
            head = json.loads(await asyncio.wait_for(reader.readline(), seconds + _CONNECT_SECONDS))
            content = await reader.readexactly(head["bytes"])
        except (OSError, ValueError, asyncio.IncompleteReadError, TimeoutError):
            raise LauncherUnavailable("The control plane is stopping or busy. Ask again.") from None
        finally:
            writer.close()
        match head.get("problem"):
            case "unknown":
                raise NotFound("This control plane holds no such pod.")
            case "creating":
                raise LauncherUnavailable("The pod is not recorded yet. Ask again.")
            case "other":
                raise Unauthenticated(f"The pod {caller.namespace}/{caller.name} is another pod.")
        return head, content


def _problem(pod: _Pod | None) -> str:
    if pod is None:
        return "unknown"
    return "creating" if pod.reference is None else "other"


def _path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.sock")


def _address(folder: Path) -> str:
    """The path of the socket, shortened if it exceeds the kernel's limit."""
    path = _path(folder)
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        return str(path)
    if not Path("/proc/self/fd").is_dir():
        raise EnvironmentProblem(f"The path of the data directory is too long for a socket in it: {path}.")
    return f"/proc/self/fd/{_descriptor(folder.parent)}/{path.name}"


@cache
def _descriptor(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _copy(path: Path, copy: Path) -> None:
    """Create a copy that remains when ``path`` is removed."""
    try:
        os.link(path, copy)
    except OSError:
        shutil.copyfile(path, copy)
