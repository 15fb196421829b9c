"""The DBMS sink: a write-ahead log, and a fence in the target database that moves in the same transaction.

=====  ======================================================================================================
step   action
=====  ======================================================================================================
R1     1 create the table and the fence table, if missing
       2 lock the rows of this branch and sink and set their attempt to this one, after which earlier attempts
         are refused; create the rows of new shards
T2     check rows against the table's column definitions (nulls, lengths, operations)
T3     1 reduce to the last operation of each key; 2 divide into shards, and make them durable in the snapshot
         store's write-ahead log
E5     for each shard, one transaction: 1 compare-and-set of the fence's epoch from the parent to this one;
       2 the rows; 3 commit
       when all shards are committed, the log is removed
=====  ======================================================================================================

The log names the number of shards of its epoch, which a commit uses whatever the sink's setting is by then. Modules:
``sharding`` (which shard a row belongs to), ``fence``, ``shard`` (E5 of one shard), ``shard_processes``.

With other deliveries (:mod:`epochal.backends.dbms.transaction`), rows are in the table after T3, and E5 moves only the
fence.
"""

from epochal.backends.dbms.address import DatabaseAddress
from epochal.backends.dbms.backend import DbmsBackend
from epochal.backends.dbms.writing import Writing

__all__ = ["DatabaseAddress", "DbmsBackend", "Writing"]
