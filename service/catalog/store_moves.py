"""The move of an installation to another store, as the catalog sees it: whether the store is in use, its required
contents, and the switch.

The functions run inside a transaction of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import Failure, ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.errors import Conflict, StoreUnavailable
from epochal.service.catalog.executions import end_attempt
from epochal.service.catalog.installations import InstallationRepository
from epochal.service.catalog.models import Application, Attempt, Epoch, Execution, Installation, Operation, StoreFile
from epochal.service.catalog.nodes import NodeRepository
from epochal.service.catalog.retention import RetentionRepository
from epochal.service.catalog.types import database_now, now
from epochal.service.domain.nodes import GONE_SECONDS, Node
from epochal.service.domain.supervision import SupervisionSettings

_WRITING_OPERATIONS = ("import", "rekey")
"""Operations that have written files which the catalog does not name yet."""
HasTerminated = Callable[[Node], bool]
"""Predicate: a node's process has certainly terminated."""


@dataclass(frozen=True)
class NamedFile:
    """A file that belongs to no branch. ``sha256``: ``None`` if it is unknown."""

    path: str
    sha256: str | None
    bytes: int


@dataclass(frozen=True)
class StoreContents:
    """Contents of the store that the catalog requires. ``kept``: retained snapshots. ``prepared``: epochs whose
    write-ahead logs a sink may not have applied yet. ``named``: files that belong to no branch, by path."""

    kept: Mapping[EpochKey, ManifestReference]
    prepared: frozenset[EpochKey]
    named: Mapping[str, NamedFile]

    def is_within(self, copied: StoreContents) -> bool:
        """True if a copy of ``copied`` contains all of it."""
        return (
            all(copied.kept.get(key) == reference for key, reference in self.kept.items())
            and self.prepared <= copied.prepared
            and self.named.keys() <= copied.named.keys()
        )


class StoreMoveRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def installation(self) -> Installation:
        """Raises ``Conflict`` before the first start."""
        row = InstallationRepository(self._session).find()
        if row is None:
            raise Conflict("The catalog was never started with a store. Start a control plane with the new store.")
        return row

    def check_unused(self, has_terminated: HasTerminated) -> None:
        """Raise ``Conflict`` if a node, a driver or an operation uses the store."""
        for node in NodeRepository(self._session).living():
            if not has_terminated(node):
                what = "control plane" if node.role == "control" else "query node"
                raise Conflict(
                    f"The {what} at {node.public_url} (process {node.process} on {node.host}) uses the store. Stop it; "
                    f"if it was killed, repeat the command {GONE_SECONDS:.0f} s later."
                )
        lease = SupervisionSettings().lease_seconds
        valid = Execution.heartbeat_at >= database_now(self._session) - timedelta(seconds=lease)
        running = select(Execution).join(Attempt, Attempt.execution == Execution.id)
        alive = self._session.scalars(running.where(Attempt.state == "running", valid).limit(1)).first()
        if alive is not None:
            name = self._session.get_one(Application, alive.application).name
            raise Conflict(
                f"The driver of {name} uses the store: its lease is valid. A driver loses it {lease:.0f} s after the "
                f"control planes have stopped. Repeat the command then; `epochal stop {name}` before stopping them "
                "avoids this."
            )
        unfinished = select(Operation).where(Operation.state == "running", Operation.kind.in_(_WRITING_OPERATIONS))
        operation = self._session.scalars(unfinished.limit(1)).first()
        if operation is not None:
            raise Conflict(
                f"The {operation.kind} {operation.id} is unfinished. Start the control plane with the present store, "
                "and wait for the operation or cancel it."
            )

    def contents(self) -> StoreContents:
        prepared = select(Epoch.branch, Epoch.epoch).where(Epoch.state == State.PREPARED.value)
        files = select(StoreFile).where(
            StoreFile.bytes.is_not(None),
            StoreFile.expires_at.is_(None) | (StoreFile.expires_at > database_now(self._session)),
        )
        return StoreContents(
            kept=RetentionRepository(self._session).known(now()).kept,
            prepared=frozenset(EpochKey(branch, epoch) for branch, epoch in self._session.execute(prepared)),
            named={
                row.path: NamedFile(row.path, row.owner if row.kind == "artifact" else None, row.bytes or 0)
                for row in self._session.scalars(files)
            },
        )

    def switch(self, store: str, incarnation: str, copied: StoreContents, has_terminated: HasTerminated) -> None:
        """Assign the copy to the catalog, as a new incarnation of the installation, which fences the drivers of the
        earlier one. Expired snapshots, which are not in the copy, are marked as collected. Raises ``Conflict`` if the
        copy lacks something, or as :meth:`check_unused`."""
        row = InstallationRepository(self._session).ensure()  # a control plane that starts waits for this transaction
        self.check_unused(has_terminated)
        if not self.contents().is_within(copied):
            raise Conflict("The catalog has changed since the copy began. Repeat the command to copy what is missing.")
        retention = RetentionRepository(self._session)
        retention.mark(retention.known(now()).expired, now())
        self._end_attempts(store)
        row.store, row.incarnation = store, incarnation
        self._session.flush()

    def _end_attempts(self, store: str) -> None:
        """Fence drivers that survive without a lease: they would continue to write to the old store. The attempts do
        not count as failed."""
        failure = Failure(type=StoreUnavailable.slug, message=f"The store was moved to {store}.")
        rows = self._session.execute(
            select(Execution, Attempt.number)
            .join(Attempt, Attempt.execution == Execution.id)
            .where(Attempt.state == "running")
        ).all()
        for execution, number in rows:
            end_attempt(self._session, execution, number, "lost", failure)
