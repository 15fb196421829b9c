"""The Kafka sink: a write-ahead log, applied in one Kafka transaction together with a marker that says so.

A transaction that stays open from a task to the commit, as Flink holds it, is aborted by the broker after its timeout,
blocks every read_committed reader meanwhile, and cannot be resumed by another process. So nothing is open at the broker
before the epoch is decided:

=====  ================================================================================================
step   what
=====  ================================================================================================
T1     nothing
T2     rows become records; those too large for their topic are refused, naming the key
T3     the log is durable in the snapshot store; handle: its segments
R1     per shard, a new producer of ``{branch}.{sink}.{shard}``: the broker fences earlier ones, and aborts what
       they left open; only then the marker is read
E5     1 no producer, or after anything ambiguous: as R1
       2 the marker names this epoch, or a later one: done
       3 the marker must name the parent epoch; nothing is right only before a branch's first epoch
       4 one transaction: all records, then the marker; commit
       5 the log is deleted
=====  ================================================================================================

Modules: ``connection`` (settings, the client's errors in Epochal's words), ``topics`` (what the broker says of them),
``records`` (rows to records), ``encoding`` and ``avro`` (their formats), ``marker``, ``producers``, ``committer`` (E5
of one shard), ``transactions`` (T1 to T3), ``backend``.
"""
