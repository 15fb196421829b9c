"""The DBMS sink: a write-ahead log, and a fence row in the target database that moves in the same transaction."""

from epochal.backends.dbms.address import DatabaseAddress
from epochal.backends.dbms.backend import DbmsBackend
from epochal.backends.dbms.writing import Writing

__all__ = ["DatabaseAddress", "DbmsBackend", "Writing"]
