"""The history of one application: epochs, executions, savepoints, snapshots, lineage."""

from __future__ import annotations

from typing import Any

from epochal.client.models import Epoch, Execution, Lineage, Operation, Savepoint, Snapshot
from epochal.client.paths import path
from epochal.client.transport import PAGE, Transport, read


class Epochs:
    """``client.application(name).epochs``"""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._path = path("applications", application, "epochs")

    def list(self, limit: int | None = 50, state: str | None = None) -> list[Epoch]:
        """Newest first; only those in ``state`` (started, prepared, committed, aborted) if given."""
        return self._transport.pages(self._path, Epoch, limit, {"state": state})

    def get(self, epoch: int) -> Epoch:
        return read(Epoch, self._transport.get(f"{self._path}/{epoch:d}"))


class Executions:
    """``client.application(name).executions``"""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._application = application

    def list(self, limit: int | None = 50) -> list[Execution]:
        """Newest first."""
        return self._transport.pages(path("applications", self._application, "executions"), Execution, limit)

    def get(self, id: str) -> Execution:
        return read(Execution, self._transport.get(path("applications", self._application, "executions", id)))


class Savepoints:
    """``client.application(name).savepoints``"""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._application = application

    def create(self, name: str, message: str | None = None) -> Operation:
        """Name the next snapshot. The operation's result is the savepoint."""
        target = path("applications", self._application, "savepoints")
        return read(Operation, self._transport.post(target, {"name": name, "message": message}))

    def list(self, limit: int | None = None) -> list[Savepoint]:
        return self._transport.pages(path("applications", self._application, "savepoints"), Savepoint, limit)

    def get(self, name: str) -> Savepoint:
        return read(Savepoint, self._transport.get(path("applications", self._application, "savepoints", name)))

    def delete(self, name: str) -> None:
        self._transport.delete(path("applications", self._application, "savepoints", name))


class Snapshots:
    """``client.application(name).snapshots``"""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._path = path("applications", application, "snapshots")

    def list(self, limit: int | None = 50) -> list[Epoch]:
        """Newest first."""
        return self._transport.pages(self._path, Epoch, limit)

    def get(self, epoch: int) -> Snapshot:
        """One snapshot, with its whole manifest. Raises ``SnapshotExpired`` past the retention."""
        answer = self._transport.get(f"{self._path}/{epoch:d}")
        manifest = {name: value for name, value in answer.items() if name != "reference"}
        return read(Snapshot, {**answer, "manifest": manifest})


def read_lineage(transport: Transport, application: str, limit: int | None) -> Lineage:
    """All pages of a lineage, up to ``limit`` snapshots, as one."""
    nodes: list[Any] = []
    edges: list[Any] = []
    cursor: str | None = None
    while True:
        size = PAGE if limit is None else min(PAGE, limit - len(nodes))
        query = {"format": "json", "limit": size, "cursor": cursor}
        answer = transport.get(path("applications", application, "lineage"), query)
        nodes.extend(answer["nodes"])
        edges.extend(edge for edge in answer["edges"] if edge not in edges[-PAGE:])
        cursor = answer.get("next_cursor")
        if cursor is None or (limit is not None and len(nodes) >= limit):
            return read(Lineage, {**answer, "nodes": nodes, "edges": edges, "next_cursor": cursor})
