"""Advisory locks of PostgreSQL: who does one of these things does it alone, until the end of his transaction.

On SQLite the one writer is alone anyway.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from sqlalchemy import Connection, func, select
from sqlalchemy.orm import Session

from epochal.service.catalog.database import Database

_ASK_SECONDS = 0.1


class Alone(IntEnum):
    """Numbers that all control planes of a catalog agree on, of any version."""

    MIGRATION = 0x65706F63
    STORE = 0x65706F64
    """Whether an operation on the whole store may begin, and whose the store is."""
    ADMIN_TOKEN = 0x65706F65
    """Which admin tokens there are."""


def alone(within: Session | Connection, what: Alone) -> None:
    """Wait until nobody else does it, and keep others waiting until this transaction ends."""
    connection = within.connection() if isinstance(within, Session) else within
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(int(what))))


@contextmanager
def alone_meanwhile(database: Database, what: Alone) -> Iterator[None]:
    """For what takes several transactions. Whoever waits asks again and again, and has no transaction meanwhile: an
    index that is built concurrently waits for all of those. Raises ``CatalogUnavailable``."""
    if database.engine.dialect.name != "postgresql":
        yield
        return
    with database.without_transaction() as connection:
        while not connection.scalar(select(func.pg_try_advisory_lock(int(what)))):
            time.sleep(_ASK_SECONDS)
        try:
            yield
        finally:
            connection.scalar(select(func.pg_advisory_unlock(int(what))))
