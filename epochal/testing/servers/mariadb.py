"""A private MariaDB server from the system's ``mariadbd`` (Debian: ``mariadb-server-core``, ``-client-core``)."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from epochal.testing.servers.process import LOOPBACK, ServerProcess, ServerUnavailable, accepts, free_port

USER = "epochal"


class MariadbServer:
    """A running server. Tests create clean databases with :meth:`create_database`."""

    def __init__(self, process: ServerProcess, port: int, password: str) -> None:
        self.process = process
        self.port = port
        self.password = password

    def url(self, database: str) -> str:
        """Return an SQLAlchemy URL."""
        return f"mysql+pymysql://{USER}:{self.password}@{LOOPBACK}:{self.port}/{database}"

    def create_database(self) -> str:
        """Create an empty database and return its SQLAlchemy URL."""
        import pymysql

        name = f"test_{secrets.token_hex(6)}"
        with pymysql.connect(host=LOOPBACK, port=self.port, user=USER, password=self.password) as connection:
            connection.cursor().execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return self.url(name)


@contextmanager
def mariadb() -> Iterator[MariadbServer]:
    """Start a server with an empty data folder; stop it and remove the folder at the end.

    Raises ``ServerUnavailable`` if ``mariadbd`` is not on the PATH.
    """
    search = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
    program, install = shutil.which("mariadbd", path=search), shutil.which("mariadb-install-db", path=search)
    if program is None or install is None:
        raise ServerUnavailable(
            "There is no mariadbd on the PATH: install the packages mariadb-server-core and mariadb-client-core."
        )
    folder = Path(tempfile.mkdtemp(prefix="epochal-mariadb-"))
    try:
        base = Path(program).resolve().parents[1]
        password = secrets.token_hex(16)
        common = ["--no-defaults", f"--basedir={base}", f"--datadir={folder / 'data'}", f"--tmpdir={folder}"]
        common += ["--user=root"] if os.geteuid() == 0 else []
        _initialise(install, folder, common)
        port = free_port()
        settings = [f"--port={port}", f"--bind-address={LOOPBACK}", f"--socket={folder / 'socket'}"]
        settings += [f"--pid-file={folder / 'pid'}", "--innodb-flush-log-at-trx-commit=2", "--skip-name-resolve"]
        process = ServerProcess("MariaDB", [program, *common, *settings], folder / "server.log", directory=folder)
        server = MariadbServer(process, port, password)
        try:
            process.wait_until(lambda: accepts(port) and _answers(server), seconds=60)
            _own_user(server)
            yield server
        finally:
            process.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _initialise(install: str, folder: Path, common: list[str]) -> None:
    options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
    process = ServerProcess(
        "MariaDB's mariadb-install-db", [install, *common, *options], folder / "install.log", directory=folder
    )
    process.wait_for_success(seconds=120)


def _own_user(server: MariadbServer) -> None:
    """Create the test user and protect the administrator accounts with a password, although only loopback is served."""
    import pymysql

    with pymysql.connect(host=LOOPBACK, port=server.port, user="root") as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE USER '{USER}'@'%%' IDENTIFIED BY %s", (server.password,))
        cursor.execute(f"GRANT ALL ON *.* TO '{USER}'@'%%' WITH GRANT OPTION", ())
        cursor.execute("SET PASSWORD FOR root@localhost = PASSWORD(%s)", (server.password,))
        cursor.execute("SET PASSWORD FOR root@127.0.0.1 = PASSWORD(%s)", (server.password,))


def _answers(server: MariadbServer) -> bool:
    import pymysql

    with suppress(pymysql.Error), pymysql.connect(host=LOOPBACK, port=server.port, user="root"):
        return True
    return False
