"""Where snapshots lie: a control plane whose store is S3 behind a proxy, or a local folder."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import inputs
from benchmarks.object_store import application
from benchmarks.running import PATIENCE_SECONDS, head, wait_for
from epochal.client import Client
from epochal.client.applications import ApplicationHandle
from epochal.testing.servers.control_plane import ControlPlane, control_plane
from epochal.testing.servers.s3 import s3
from epochal.testing.servers.s3_proxy import S3Proxy, s3_proxy
from epochal.testing.servers.s3_requests import Kind, Request

ROWS, KEYS = 1_000, 500
"""Rows of a small epoch, and keys of the application."""
PARALLELISM = 2
QUIET_SECONDS = 1.0
"""Without a request for this time, the processes are idle."""
KINDS: tuple[Kind, ...] = ("PUT", "GET", "LIST", "HEAD", "DELETE", "POST")


@dataclass(frozen=True)
class Place:
    """A control plane. ``proxy`` is ``None`` for one with a local store."""

    plane: ControlPlane
    proxy: S3Proxy | None

    @property
    def mark(self) -> int:
        return 0 if self.proxy is None else self.proxy.mark()

    def requests(self, since: int) -> list[Request]:
        return [] if self.proxy is None else self.proxy.requests(since)

    def wait_until_idle(self) -> None:
        """Wait until no request has been answered for a second."""
        if self.proxy is not None:
            wait_until_idle(self.proxy)


@contextmanager
def bucket() -> Iterator[tuple[S3Proxy, str]]:
    """An S3 server behind a proxy, and the URL of an empty bucket."""
    with s3() as server, s3_proxy(server) as proxy:
        yield proxy, f"s3://{server.create_bucket()}"


@contextmanager
def place_in_s3(folder: Path) -> Iterator[Place]:
    """A control plane with its store in S3. The proxy does not delay requests yet."""
    with bucket() as (proxy, url):
        variables = {**proxy.environment(), "EPOCHAL_STORE": f"{url}/installation"}
        with control_plane(folder, variables) as plane:
            yield Place(plane, proxy)


@contextmanager
def local_place(folder: Path) -> Iterator[Place]:
    with control_plane(folder) as plane:
        yield Place(plane, None)


def submit(
    client: Client, name: str, source: Path, output: Path | None, configuration: Mapping[str, object]
) -> ApplicationHandle:
    """Create an application over the files of a folder, and wait for its first committed epoch."""
    artifact = client.artifacts.upload(Path(application.__file__))
    client.applications.create(
        name,
        artifact.sha256,
        parameters={"folder": str(source), "output": None if output is None else str(output)},
        configuration={"parallelism": PARALLELISM, **configuration},
    )
    created = client.application(name)
    wait_for(lambda: head(created) > 0, f"the first epoch of {name}")
    return created


def feed(folder: Path, files: int, keys: int = KEYS) -> Path:
    """Write the input of small epochs, a file each. Returns the folder."""
    return inputs.write_files(folder, files, ROWS, keys)


def wait_until_idle(proxy: S3Proxy) -> None:
    """Wait until no request has been answered for a second."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    seen = -1
    while seen != (seen := proxy.mark()) and time.monotonic() < deadline:
        time.sleep(QUIET_SECONDS)


def counted(requests: Sequence[Request]) -> str:
    """Number of requests by kind, as text: ``1 PUT, 2 GET``."""
    kinds = Counter(request.kind for request in requests)
    return ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS if kinds[kind]) or "none"


def purposes(requests: Sequence[Request]) -> Counter[str]:
    """Number of requests by kind and by the part of the store: ``PUT manifests``."""
    return Counter(f"{request.kind} {_part(request)}" for request in requests)


def _part(request: Request) -> str:
    """The folder of an object below its branch; for a listing, that of its prefix."""
    path = request.query.get("prefix") or request.path.partition("/installation/")[2]
    known = ("manifests", "epochs", "bases", "queries", "loops", "logs", "artifacts", "uploads")
    found = next((part for part in path.strip("/").split("/") if part in known), None)
    return "packs" if path.endswith(".pack") else found or path or "several objects"
