"""The DBMS sink: a write-ahead log, and a fence row in the target database that moves in the same transaction.

=====  ======================================================================================================
step   action
=====  ======================================================================================================
R1     1 create the fence table, and the row of this branch and sink, if missing
       2 set the row's attempt to this one: a compare-and-set, after which earlier attempts are refused
T2     check rows against the table's column definitions (nulls, lengths, operations)
T3     1 reduce to the last operation of each key; 2 make it durable in the snapshot store's write-ahead log
E5     one transaction: 1 compare-and-set of the fence's epoch from the parent to this one; 2 the rows; 3 commit
       then the log is removed
=====  ======================================================================================================

With other deliveries (:mod:`epochal.backends.dbms.transaction`), rows are in the table after T3, and E5 moves only the
fence.
"""

from epochal.backends.dbms.address import DatabaseAddress
from epochal.backends.dbms.backend import DbmsBackend
from epochal.backends.dbms.writing import Writing

__all__ = ["DatabaseAddress", "DbmsBackend", "Writing"]
