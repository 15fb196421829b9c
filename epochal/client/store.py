"""The store as a whole: garbage collection, verification and backups. All are for administrators."""

from __future__ import annotations

from collections.abc import Sequence

from epochal.client.models import CollectionPlan, Operation, Pruned
from epochal.client.transport import Transport
from epochal.wire.bodies import read


class Store:
    """``client.store``"""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def plan_collection(self, grace_seconds: float | None = None, foreign: Sequence[str] = ()) -> CollectionPlan:
        """What a collection would delete now, and why. Changes nothing."""
        body = {"grace_seconds": grace_seconds, "foreign": list(foreign)}
        return read(CollectionPlan, self._transport.query("/v1/collections/plan", body))

    def collect(self, grace_seconds: float | None = None, foreign: Sequence[str] = ()) -> Operation:
        """Delete what no retained snapshot needs; the operation's result says what went. Raises ``Conflict``."""
        body = {"grace_seconds": grace_seconds, "foreign": list(foreign)}
        return read(Operation, self._transport.post("/v1/collections", body))

    def verify(self, application: str | None = None, *, quick: bool = False, repair: bool = False) -> Operation:
        """Check every file that retained snapshots need; the operation's result is the report."""
        body = {"application": application, "quick": quick, "repair": repair}
        return read(Operation, self._transport.post("/v1/verifications", body))

    def back_up(self, to: str) -> Operation:
        """Copy the catalog and what it names to ``to``: an absolute path on the control plane's machine, or a URL.

        The operation's result is a :class:`~epochal.client.models.BackedUp`. Raises ``Conflict`` while files are being
        deleted."""
        return read(Operation, self._transport.post("/v1/backups", {"to": to}))

    def plan_pruning(self, place: str, *, keep: int | None = None, older_than_seconds: float | None = None) -> Pruned:
        """Which backups in ``place`` would go, and how much space that gives. Changes nothing. Raises ``NotFound``;
        ``Conflict`` where none of those that would stay is whole."""
        body = {"place": place, "keep": keep, "older_than_seconds": older_than_seconds}
        return read(Pruned, self._transport.query("/v1/backups/prune/plan", body))

    def prune_backups(
        self, place: str, *, keep: int | None = None, older_than_seconds: float | None = None
    ) -> Operation:
        """Remove backups but for the ``keep`` newest and what is younger, and the files that only they name.

        The operation's result is a :class:`~epochal.client.models.Pruned`. Raises ``Conflict`` while one is made."""
        body = {"place": place, "keep": keep, "older_than_seconds": older_than_seconds}
        return read(Operation, self._transport.post("/v1/backups/prune", body))
