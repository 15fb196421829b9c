"""The Kafka sink: a write-ahead log, applied in one Kafka transaction together with a marker that records the epoch.

A transaction that stays open from a task to the commit, as in Flink, is aborted by the broker after its timeout, blocks
every read_committed reader meanwhile, and cannot be resumed by another process. The sink therefore opens no transaction
at the broker before the epoch is decided:

=====  ================================================================================================
step   action
=====  ================================================================================================
T1     none
T2     rows become records; a record too large for its topic is refused with an error that names the key
T3     the log is durable in the snapshot store; handle: its segments
R1     per shard, a new producer of ``{branch}.{sink}.{shard}``: the broker fences earlier producers and aborts
       their open transactions; only then the marker is read
E5     1 without a producer, or after any ambiguous result: as R1
       2 if the marker names this epoch or a later one: done
       3 the marker must name the parent epoch; a missing marker is valid only before a branch's first epoch
       4 one transaction: all records, then the marker; commit
       5 the log is deleted
=====  ================================================================================================

Modules: ``connection`` (settings, translation of the client's errors), ``topics`` (queries about topics), ``records``
(rows to records), ``encoding`` and ``avro`` (formats), ``marker``, ``producers``, ``committer`` (E5 of one shard),
``transactions`` (T1 to T3), ``backend``.
"""
