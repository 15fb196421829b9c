"""Column types with the same meaning on SQLite and PostgreSQL, and the database clock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime in UTC. SQLite has no time zones and stores it without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    @property
    def python_type(self) -> type[datetime]:
        return datetime

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(DateTime(timezone=dialect.name != "sqlite"))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; the catalog stores aware datetimes only")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class DatabaseClock(FunctionElement[datetime]):
    """The time of the database clock, evaluated within a statement."""

    type = UtcDateTime()
    inherit_cache = True


@compiles(DatabaseClock, "postgresql")
def _clock_of_postgresql(_element: DatabaseClock, _compiler: SQLCompiler, **_: Any) -> str:
    return "clock_timestamp()"


@compiles(DatabaseClock, "sqlite")
def _clock_of_sqlite(_element: DatabaseClock, _compiler: SQLCompiler, **_: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


def database_now(session: Session) -> datetime:
    """The time of the database clock, which all control planes share."""
    return session.scalars(select(DatabaseClock())).one()


def now() -> datetime:
    return datetime.now(UTC)
