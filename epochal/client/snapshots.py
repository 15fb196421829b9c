"""Epochs, executions, savepoints, snapshots, their annotations and lineage, sinks and their open transactions."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from epochal.client.drawn import EpochList
from epochal.client.exchanges import PAGE, path
from epochal.client.models import (
    DiffRow,
    Epoch,
    Execution,
    KeyGroupSizes,
    Lineage,
    Operation,
    Savepoint,
    Snapshot,
    SnapshotDiff,
    SnapshotMessage,
    SnapshotPin,
    SnapshotTag,
    Transaction,
)
from epochal.client.transport import Transport
from epochal.wire.bodies import read
from epochal.wire.snapshots import FoldedRange, TransactionsAnswer

# Whole states are compared if the epochs between two snapshots have expired.
DIFF_SECONDS = 300.0


class Epochs:
    """``client.application(name).epochs``"""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._path = path("applications", application, "epochs")

    def list(self, limit: int | None = 50, state: str | None = None) -> EpochList:
        """Newest first; only those in ``state`` (started, prepared, committed, aborted) if given. Old committed epochs
        are listed only by :meth:`folded`."""
        return EpochList(self._transport.pages(self._path, Epoch, limit, {"state": state}))

    def folded(self) -> builtins.list[FoldedRange]:
        """List ranges of committed epochs of which the catalog keeps only a summary, newest first."""
        return self._transport.pages(self._path, FoldedRange, None, {"state": "committed"}, member="folded")

    def get(self, epoch: int) -> Epoch:
        return read(Epoch, self._transport.get(f"{self._path}/{epoch:d}"))


class Executions:
    """``client.application(name).executions``"""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._application = application

    def list(self, limit: int | None = 50) -> list[Execution]:
        """Listed newest first."""
        return self._transport.pages(path("applications", self._application, "executions"), Execution, limit)

    def get(self, id: str) -> Execution:
        return read(Execution, self._transport.get(path("applications", self._application, "executions", id)))


class Savepoints:
    """``client.application(name).savepoints``"""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._application = application

    def create(self, name: str, message: str | None = None) -> Operation:
        """Create a savepoint of the next snapshot. The operation's result is the savepoint."""
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

    def list(self, limit: int | None = 50) -> EpochList:
        """Listed newest first."""
        return EpochList(self._transport.pages(self._path, Epoch, limit))

    def get(self, epoch: int | str) -> Snapshot:
        """Read a snapshot with its manifest, by epoch, savepoint, tag, or ``head``. Raises ``SnapshotExpired``."""
        answer = self._transport.get(f"{self._path}/{quote(str(epoch), safe='')}")
        manifest = {name: value for name, value in answer.items() if name not in ("reference", "annotations")}
        return read(Snapshot, {**answer, "manifest": manifest})

    def key_groups(self, snapshot: int | str, table: str) -> KeyGroupSizes:
        """Rows and bytes of each key group of a state table in the files of a snapshot, also of tables that are not
        queryable. Raises ``NotFound``, ``SnapshotExpired``."""
        target = f"{self._path}/{quote(str(snapshot), safe='')}/key-groups/{quote(table, safe='')}"
        return read(KeyGroupSizes, self._transport.get(target, None, DIFF_SECONDS))

    def diff(self, before: int | str, after: int | str) -> SnapshotDiff:
        """Differences between two snapshots: code, parameters, input read between them, keys of each state table.

        A snapshot is an epoch, the name of a savepoint or tag, or ``head``; ``after`` may belong to another
        application, as in ``"again:12"``."""
        return read(SnapshotDiff, self._transport.get(self._of_diff(before), {"to": after}, DIFF_SECONDS))

    def diff_rows(
        self, before: int | str, after: int | str, table: str, *, limit: int | None = None
    ) -> Sequence[DiffRow]:
        """The differing rows of one state table, in key order: at most ``limit``, or all."""
        target = f"{self._of_diff(before)}/{quote(table, safe='')}"
        return self._transport.pages(target, DiffRow, limit, {"to": after}, DIFF_SECONDS)

    def _of_diff(self, before: int | str) -> str:
        return f"{self._path}/{quote(str(before), safe='')}/diff"


class Annotations:
    """``client.application(name).annotations``"""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._application = application

    def pin(self, epoch: int, message: str | None = None) -> SnapshotPin:
        """Protect a snapshot from expiry. Raises ``SnapshotExpired`` if it has expired."""
        return read(SnapshotPin, self._transport.post(self._of(epoch, "pin"), {"message": message}))

    def unpin(self, epoch: int) -> None:
        """Remove a pin, so that the snapshot can expire."""
        self._transport.delete(self._of(epoch, "pin"))

    def pins(self) -> list[SnapshotPin]:
        return self._transport.pages(path("applications", self._application, "pins"), SnapshotPin, None)

    def tag(self, epoch: int, name: str, message: str | None = None, *, move: bool = False) -> SnapshotTag:
        """Tag a snapshot. Tags do not prevent expiry. Raises ``NameTaken`` for an existing tag unless ``move``."""
        body = {"name": name, "message": message, "move": move}
        return read(SnapshotTag, self._transport.post(self._of(epoch, "tags"), body))

    def untag(self, epoch: int, name: str) -> None:
        self._transport.delete(path("applications", self._application, "snapshots", epoch, "tags", name))

    def tags(self) -> list[SnapshotTag]:
        """Tags by name."""
        return self._transport.pages(path("applications", self._application, "tags"), SnapshotTag, None)

    def message(self, epoch: int) -> SnapshotMessage:
        """The message of a snapshot. Raises ``NotFound`` if it has none."""
        return read(SnapshotMessage, self._transport.get(self._of(epoch, "message")))

    def write_message(self, epoch: int, message: str) -> SnapshotMessage:
        """Write or replace the message of a snapshot."""
        return read(SnapshotMessage, self._transport.post(self._of(epoch, "message"), {"message": message}))

    def delete_message(self, epoch: int) -> None:
        self._transport.delete(self._of(epoch, "message"))

    def _of(self, epoch: int, what: str) -> str:
        return path("applications", self._application, "snapshots", epoch, what)


class Transactions:
    """``client.application(name).transactions``"""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._application = application

    def list(self) -> list[Transaction]:
        """List open transactions, by epoch and sink."""
        answer = self._transport.get(path("applications", self._application, "transactions"))
        return list(read(TransactionsAnswer, answer).items)

    def retry(self, sink: str, epoch: int, message: str | None = None) -> Operation:
        """Retry the commit immediately, regardless of the back-off."""
        return self._decide(sink, epoch, "retry", message)

    def commit(self, sink: str, epoch: int, message: str | None = None) -> Operation:
        """Mark the transaction as applied manually: the sink continues without writing it."""
        return self._decide(sink, epoch, "commit", message)

    def abort(self, sink: str, epoch: int, message: str | None = None) -> Operation:
        """Discard the transaction's rows in this sink only."""
        return self._decide(sink, epoch, "abort", message)

    def _decide(
        self, sink: str, epoch: int, action: Literal["retry", "commit", "abort"], message: str | None
    ) -> Operation:
        target = path("applications", self._application, "transactions", sink, epoch, action)
        return read(Operation, self._transport.post(target, {"message": message}))


class Sinks:
    """``client.application(name).sinks``"""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._application = application

    def optimize(self, sink: str) -> Operation:
        """Compact the small files of the Delta table that a sink of a running application writes.

        Result: ``{sink, files_removed, files_added, bytes_removed, bytes_added, version}``. Raises ``NotFound``,
        ``InvalidInput`` for a sink that does not write a Delta table, ``Conflict`` if the application does not run."""
        return read(
            Operation, self._transport.post(path("applications", self._application, "sinks", sink, "optimize"), {})
        )


def read_lineage(
    transport: Transport,
    application: str,
    limit: int | None,
    *,
    fold: bool = False,
    slices: bool = False,
    cursor: str | None = None,
    span: Mapping[str, str | int | None] | None = None,
) -> Lineage:
    """Merge the pages of a lineage, up to ``limit`` nodes."""
    nodes: list[Any] = []
    edges: list[Any] = []
    while True:
        size = PAGE if limit is None else min(PAGE, limit - len(nodes))
        query = {"limit": size, "cursor": cursor, "fold": _flag(fold), "slices": _flag(slices)}
        query |= span or {}
        answer = transport.get(path("applications", application, "lineage"), query)
        nodes.extend(answer["nodes"])
        edges.extend(answer["edges"])
        cursor = answer.get("next_cursor")
        if cursor is None or (limit is not None and len(nodes) >= limit):
            return read(Lineage, {**answer, "nodes": nodes, "edges": edges, "next_cursor": cursor})


def draw_lineage(transport: Transport, application: str, format: Literal["dot", "svg"], limit: int) -> str:
    """The newest nodes of a folded lineage as the text of a drawing."""
    query = {"format": format, "limit": min(limit, PAGE)}
    return transport.text(path("applications", application, "lineage"), query)


def _flag(value: bool) -> str:
    return "true" if value else "false"
