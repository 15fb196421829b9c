"""A pytest plugin: engines of one dialect share the statements that SQLAlchemy has compiled.

A control plane has three engines and caches compiled statements during its lifetime. Each test has new engines, which
would compile most of their statements for the first time: a third of the CPU time of the service tests.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

SHARED = (SQLiteDialect_pysqlite, PGDialect_psycopg)
"""Dialects whose server has one version per run, so that statements compile to the same text."""
_compiled: LRUCache[Any, Any] = LRUCache(10_000)


class _CompiledCache:
    """Replaces the cache attribute of an engine."""

    def __get__(self, engine: Engine, owner: type[Engine]) -> Any:
        return _compiled if type(engine.dialect) in SHARED else engine.__dict__["_compiled_cache"]

    def __set__(self, engine: Engine, own: Any) -> None:
        engine.__dict__["_compiled_cache"] = own


def pytest_configure() -> None:
    for dialect in SHARED:
        # The dialect is part of a statement's key, also in the caches of mappers.
        dialect.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
        dialect.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[assignment,method-assign]
    Engine._compiled_cache = _CompiledCache()  # type: ignore[method-assign]
