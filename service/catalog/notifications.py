"""PostgreSQL's NOTIFY, on a connection of its own. What is sent is a hint, and may be lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from epochal.errors import CatalogUnavailable
from epochal.service.catalog.database import make_engine

_CHANNEL = "epochal"
APPLICATION_NAME = "epochal hints"
"""Of these connections, in ``pg_stat_activity``."""


class Notifications:
    """One connection that listens and sends; for one thread. Made anew after ``CatalogUnavailable``."""

    def __init__(self, url: str) -> None:
        self._engine = make_engine(url, connections=1)
        try:
            self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._connection.exec_driver_sql(f"SET application_name = '{APPLICATION_NAME}'")
            self._connection.exec_driver_sql(f"LISTEN {_CHANNEL}")
            self._driver: Any = self._connection.connection.driver_connection
        except SQLAlchemyError as error:
            self._engine.dispose()
            raise CatalogUnavailable(f"The catalog's notifications cannot be listened to: {error}") from error

    def fileno(self) -> int:
        """Readable when there may be something to :meth:`receive`."""
        return int(self._driver.fileno())

    def send(self, payload: str) -> None:
        """Outside any transaction. Raises ``CatalogUnavailable``."""
        self._execute("SELECT pg_notify(:channel, :payload)", channel=_CHANNEL, payload=payload)

    def check(self) -> None:
        """Whether the connection is still there. Raises ``CatalogUnavailable``."""
        self._execute("SELECT 1")

    def receive(self) -> Iterator[str]:
        """What has come, without waiting. Raises ``CatalogUnavailable``."""
        import psycopg

        try:
            for notification in self._driver.notifies(timeout=0):
                yield notification.payload
        except psycopg.Error as error:
            raise CatalogUnavailable(f"The connection for the catalog's notifications was lost: {error}") from error

    def close(self) -> None:
        with suppress(SQLAlchemyError):
            self._connection.close()
        self._engine.dispose()

    def _execute(self, statement: str, **values: str) -> None:
        try:
            self._connection.execute(text(statement), values)
        except SQLAlchemyError as error:
            raise CatalogUnavailable(f"The connection for the catalog's notifications was lost: {error}") from error
