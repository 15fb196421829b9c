"""Look-ups in a state table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from epochal.client.models import StateLookup, StateValue
from epochal.client.paths import key_segment, path
from epochal.client.transport import Transport, read

Isolation = Literal["read_committed", "read_uncommitted"]

# What the control plane needs to answer, on top of the time it was asked to wait for an epoch.
ANSWER_SECONDS = 30.0


class State:
    """``client.application(name).state(table)``. Every answer says which epoch it is from."""

    def __init__(self, transport: Transport, application: str, table: str) -> None:
        self._transport = transport
        self._path = path("applications", application, "state", table)

    def get(
        self,
        *key: Any,
        epoch: int | None = None,
        savepoint: str | None = None,
        min_epoch: int | None = None,
        wait_seconds: float | None = None,
        isolation: Isolation | None = None,
    ) -> StateValue:
        """One key: its columns' values in order.

        ``epoch`` or ``savepoint`` read an older snapshot. ``min_epoch`` waits, up to ``wait_seconds``, until that epoch
        is committed. Raises ``NotFound`` (no such table or key), ``InvalidKey``, ``SnapshotExpired``,
        ``NotYetCommitted``.
        """
        query = {
            "epoch": epoch,
            "savepoint": savepoint,
            "min_epoch": min_epoch,
            "wait_seconds": wait_seconds,
            "isolation": isolation,
        }
        timeout = None if wait_seconds is None else wait_seconds + ANSWER_SECONDS
        return read(StateValue, self._transport.get(f"{self._path}/keys/{key_segment(key)}", query, timeout))

    def lookup(
        self,
        keys: Sequence[Mapping[str, Any]],
        *,
        epoch: int | None = None,
        savepoint: str | None = None,
        min_epoch: int | None = None,
        isolation: Isolation | None = None,
    ) -> StateLookup:
        """Many keys (at most 10,000), each an object by column name; all answered from one epoch, in the same order."""
        body = {
            "keys": [dict(key) for key in keys],
            "epoch": epoch,
            "savepoint": savepoint,
            "min_epoch": min_epoch,
            "isolation": isolation,
        }
        return read(StateLookup, self._transport.post(f"{self._path}/lookup", body))
