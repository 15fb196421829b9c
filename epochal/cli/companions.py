"""Servers of the test kit beside a control plane, for evaluation: ``up --with kafka --with postgresql``.

They start empty, listen on loopback without security, and are deleted when the control plane stops.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from epochal.declarations.names import closest, listed
from epochal.errors import OptionError

KINDS = ("kafka", "hdfs", "postgresql", "mariadb")
PASSWORD = "EPOCHAL_SECRET_{}"


@dataclass(frozen=True)
class Companion:
    """``address``: the arguments with which a pipeline reaches the server."""

    kind: str
    address: str


def check_kinds(kinds: Sequence[str]) -> None:
    """Raises ``OptionError``."""
    for kind in kinds:
        if kind not in KINDS:
            raise OptionError(f"There is no server {kind!r} to start.{closest(kind, KINDS)} There are {listed(KINDS)}.")


@contextmanager
def companions(kinds: Sequence[str]) -> Iterator[list[Companion]]:
    """Start servers one after another, and stop them at the end of the block. Raises ``ServerUnavailable``."""
    with ExitStack() as stack:
        yield [_start(kind, stack) for kind in dict.fromkeys(kinds)]


def _start(kind: str, stack: ExitStack) -> Companion:
    match kind:
        case "kafka":
            from epochal.testing.servers.kafka import kafka

            return Companion(kind, f'servers="{stack.enter_context(kafka()).bootstrap}"')
        case "hdfs":
            from epochal.testing.servers.hdfs import hdfs

            server = stack.enter_context(hdfs())
            return Companion(kind, f'url="{server.url}", user="{server.user}"')
        case "postgresql":
            from epochal.testing.servers.postgresql import postgresql

            return _database(kind, stack.enter_context(postgresql()))
        case _:
            from epochal.testing.servers.mariadb import mariadb

            return _database(kind, stack.enter_context(mariadb()))


def _database(kind: str, server: Any) -> Companion:
    """Create an empty database. Its password is set in an environment variable, which drivers inherit for
    ``secret(..)``."""
    from sqlalchemy import make_url

    url = make_url(server.create_database())
    variable = PASSWORD.format(kind.upper())
    os.environ[variable] = url.password or ""
    without = url._replace(password=None, drivername=url.get_backend_name()).render_as_string()
    return Companion(kind, f'url="{without}", password=secret("env:{variable}")')
