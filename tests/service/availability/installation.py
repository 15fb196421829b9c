"""PostgreSQL, control planes as processes with their own disks, and proxies between them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx
import psycopg
from sqlalchemy import make_url

from epochal.testing.fork_server import ForkServer
from epochal.testing.servers.postgresql import PostgresqlServer, postgresql
from epochal.testing.servers.process import LOOPBACK, free_port
from epochal.testing.servers.proxy import TcpProxy

MODULE = "tests.service.availability.plane"
START_SECONDS = 60.0
DISK_MEGABYTES = 512
HOST = "EPOCHAL_TEST_HOST"
"""Environment variable with the host name that a control plane uses."""


class Process(Protocol):
    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class Program(Protocol):
    """A version of Epochal that can run modules."""

    def start(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Process:
        """Run ``module.main()`` in a new process, the leader of its group, with its output in ``log``."""


@dataclass
class Node:
    """One control plane. ``database`` and ``internal`` are the proxies to the catalog and from its drivers.

    ``program`` is the version that its next start runs.
    """

    name: str
    home: Path
    port: int
    internal_port: int
    database: TcpProxy
    internal: TcpProxy
    environment: dict[str, str]
    flags: Sequence[str]
    program: Program
    log: Path
    process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self.process = self.program.start(MODULE, self.flags, self.environment, self.log)

    def signal(self, number: int) -> None:
        """Signal the process group, as if the machine was stopped or lost; drivers are in other groups."""
        if self.runs:
            assert self.process is not None
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(30)

    def stop(self) -> None:
        """Stop in order, as for an upgrade; drivers keep running."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGTERM)
        self.process.wait(START_SECONDS)

    def kill_internal(self) -> None:
        """Kill the process that answers drivers."""
        for process, arguments, parent in _processes():
            if self.process is not None and parent == self.process.pid and b"epochal.service.internal_app" in arguments:
                os.kill(process, signal.SIGKILL)

    def ready(self) -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/readyz", timeout=5, trust_env=False).is_success
        return False

    def fill_disk(self) -> None:
        with suppress(OSError), (self.home / "ballast").open("wb") as ballast:
            while True:
                ballast.write(b"\0" * (1 << 16))

    def empty_disk(self) -> None:
        (self.home / "ballast").unlink(missing_ok=True)


@dataclass
class Installation:
    folder: Path
    postgresql: PostgresqlServer
    catalog: str
    store: Path
    nodes: list[Node] = field(default_factory=list)
    own_disks: bool = False

    @property
    def token(self) -> str:
        for node in self.nodes:
            with suppress(OSError):
                return (node.home / "admin.token").read_text().strip()
        raise AssertionError("no control plane has created a token")

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """Connect to the catalog without a proxy."""
        return psycopg.connect(make_url(self.catalog).set(drivername="postgresql").render_as_string(False))

    def wait_until_ready(self, nodes: Sequence[Node]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not all(node.ready() for node in nodes):
            for node in nodes:
                assert node.runs, f"{node.name} has ended: {node.log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, [node.log.read_text()[-2000:] for node in nodes]
            time.sleep(0.05)


@contextmanager
def installation(folder: Path, nodes: int, program: Program | None = None) -> Iterator[Installation]:
    """Run control planes of this version, or of ``program``, on one catalog and store; ends all their processes."""
    with ExitStack() as stack:
        server = stack.enter_context(postgresql())
        first = program or stack.enter_context(ForkServer([MODULE]))
        made = Installation(folder, server, server.create_database(), folder / "store")
        disks = [stack.enter_context(_disk(folder / f"node-{number}")) for number in range(nodes)]
        made.own_disks = all(disks)
        for number in range(nodes):
            made.nodes.append(_node(made, number, first, stack))
        stack.callback(_end, made)
        for number, node in enumerate(made.nodes):
            node.start()
            if number == 0:
                made.wait_until_ready([node])  # the first one migrates the catalog
        made.wait_until_ready(made.nodes)
        yield made


def _node(made: Installation, number: int, program: Program, stack: ExitStack) -> Node:
    home, port, internal_port = made.folder / f"node-{number}", free_port(), free_port()
    address = _address()
    database, internal = TcpProxy(made.postgresql.port), TcpProxy(internal_port, address or LOOPBACK)
    stack.callback(database.close)
    stack.callback(internal.close)
    url = make_url(made.catalog).set(host=LOOPBACK, port=database.port)
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return Node(
        name=f"node-{number}",
        home=home,
        port=port,
        internal_port=internal_port,
        database=database,
        internal=internal,
        environment={
            **inherited,
            "EPOCHAL_HOME": str(home),
            # A loopback address is reachable from the same machine only.
            HOST: "everywhere" if address is None else home.name,
            "EPOCHAL_DATABASE_URL": url.render_as_string(hide_password=False),
            "EPOCHAL_DRIVER_USER": str(os.geteuid()),
            # As a variable, because versions without warm drivers refuse the option.
            "EPOCHAL_WARM_DRIVERS": "0",
        },
        flags=[
            "up",
            *("--port", str(port)),
            *("--internal-port", str(internal_port)),
            *("--internal-url", f"http://{address or LOOPBACK}:{internal.port}"),
            *("--store", str(made.store)),
            *("--collect-every", "0"),
        ],
        program=program,
        log=made.folder / f"node-{number}.log",
    )


@contextmanager
def _disk(folder: Path) -> Iterator[bool]:
    """Mount a small disk if permitted; otherwise use a plain folder."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m,mode=700", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def _address() -> str | None:
    """An address of this machine that others could reach, or ``None`` if it has loopback only."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # UDP: sends nothing
        found = str(probe.getsockname()[0])
        return None if found.startswith("127.") else found
    return None


def _end(made: Installation) -> None:
    """Kill the control planes, then the remaining drivers."""
    for node in made.nodes:
        node.signal(signal.SIGCONT)
        node.kill()
    for process in driver_processes(made.folder):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def driver_processes(folder: Path) -> dict[int, str]:
    """Running drivers that work below ``folder``: command lines by process id."""
    found = {}
    for process, arguments, _ in _processes():
        with suppress(OSError):
            if b"tests.service.availability.driver" in arguments and str(folder) in os.readlink(f"/proc/{process}/cwd"):
                found[process] = arguments.replace(b"\0", b" ").decode()
    return found


def _processes() -> Iterator[tuple[int, bytes, int]]:
    """Id, arguments and parent of each process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                yield int(entry.name), (entry / "cmdline").read_bytes(), int(parent)
