"""The Kafka sink: a write-ahead log, applied in one Kafka transaction together with a marker that records the epoch.

A transaction that stays open from a task to the commit, as in Flink, is aborted by the broker after its timeout, blocks
every read_committed reader meanwhile, and cannot be resumed by another process. The sink therefore opens no transaction
at the broker before the epoch is decided:
"""
