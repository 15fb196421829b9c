"""The fault points of E2, shared by operators and sinks; each is hit with the epoch's number."""

from __future__ import annotations

from epochal.faults import declare

OPENED = declare("T1.opened", "a task has its view of the parent epoch and an open transaction")
PROCESSED = declare("T2.processed", "a task has processed all its rows; nothing is durable")
BEFORE_PRE_COMMIT = declare("T3.before-pre-commit", "a task has given away its output and is about to pre-commit")
PRE_COMMITTED = declare("T3.pre-committed", "a task's writes are durable, its handle has not been given to Spark")
