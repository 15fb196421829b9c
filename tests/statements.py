"""A pytest plugin: engines of one dialect share the statements that SQLAlchemy has compiled.

A control plane has three engines, and keeps what it compiles as long as it runs. A test has a new one, which would
compile most of what it asks for the first time: more than all else that it computes.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

SHARED = (SQLiteDialect_pysqlite, PGDialect_psycopg)
"""In one run each of them is of one version of its server, and so compiles everything to the same."""
_compiled: LRUCache[Any, Any] = LRUCache(10_000)


def pytest_configure() -> None:
    for dialect in SHARED:
        # The dialect is part of a statement's key, also in the caches that mappers have.
        dialect.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
        dialect.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[assignment,method-assign]
    made = Engine.__init__

    def sharing(self: Engine, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        if type(self.dialect) in SHARED:
            self._compiled_cache = _compiled

    Engine.__init__ = sharing  # type: ignore[method-assign]
