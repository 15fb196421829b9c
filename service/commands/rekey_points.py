"""Fault points of a rekey."""

from __future__ import annotations

from epochal.faults import declare

BEGUN = declare("rekey.begun", "the branch that will be written is known, nothing is written")
WRITTEN = declare("rekey.written", "the snapshot with other key groups is durable, nothing names it")
MOVED = declare("rekey.moved", "the application is on its new branch, in a transaction that is not committed")
