"""The DBMS sink: a write-ahead log, and a fence row in the target database that moves in the same transaction.

=====  ======================================================================================================
step   what
=====  ======================================================================================================
R1     1 the fence table is there, and this branch and sink have a row in it
       2 the row's attempt becomes this one: a compare-and-set, after which earlier attempts are refused
T2     rows are checked against what the table says it takes (nulls, lengths, operations)
T3     1 the last operation of each key stays; 2 it is durable in the write-ahead log of the snapshot store
E5     one transaction: 1 compare-and-set of the fence's epoch from the parent to this one; 2 the rows; 3 commit
       then the log is removed
=====  ======================================================================================================

Delivered otherwise (:mod:`epochal.backends.dbms.transaction`), rows are in the table after T3, and E5 moves only the
fence.
"""

from epochal.backends.dbms.address import DatabaseAddress
from epochal.backends.dbms.backend import DbmsBackend
from epochal.backends.dbms.writing import Writing

__all__ = ["DatabaseAddress", "DbmsBackend", "Writing"]
