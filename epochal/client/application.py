"""What belongs to one application: its state, history, savepoints, lineage, events and log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from epochal.client.annotations import Annotations
from epochal.client.bundles import Exports
from epochal.client.entries import Entries
from epochal.client.events import follow_events
from epochal.client.history import Epochs, Executions, Savepoints, Snapshots, draw_lineage, read_lineage
from epochal.client.models import Application, Event, Lineage, Load, StateTable
from epochal.client.paths import path
from epochal.client.queries import Queries
from epochal.client.rollback import Rollback
from epochal.client.state import State
from epochal.client.transactions import Transactions
from epochal.client.transport import Transport
from epochal.client.versions import Versions
from epochal.wire.bodies import read


class ApplicationHandle:
    """``client.application(name)``"""

    def __init__(self, transport: Transport, name: str) -> None:
        self.name = name
        self._transport = transport
        self.savepoints = Savepoints(transport, name)
        self.epochs = Epochs(transport, name)
        self.executions = Executions(transport, name)
        self.entries = Entries(transport, name)
        self.snapshots = Snapshots(transport, name)
        self.transactions = Transactions(transport, name)
        self.queries = Queries(transport, name)
        self.rollback = Rollback(transport, name)
        self.exports = Exports(transport, name)
        self.versions = Versions(transport, name)
        self.annotations = Annotations(transport, name)

    def get(self) -> Application:
        return read(Application, self._transport.get(path("applications", self.name)))

    def lineage(
        self, limit: int | None = None, *, fold: bool = False, slices: bool = False, cursor: str | None = None
    ) -> Lineage:
        """The tree of snapshots around this application, newest first; at most ``limit`` nodes, or all.

        ``fold``: runs of plain epochs are one node each. ``slices``: with what was read, on every edge.
        """
        return read_lineage(self._transport, self.name, limit, fold=fold, slices=slices, cursor=cursor)

    def lineage_drawing(self, format: Literal["dot", "svg"], limit: int = 100) -> str:
        """The newest ``limit`` nodes of the folded lineage: in the language of Graphviz, or as a picture."""
        return draw_lineage(self._transport, self.name, format, limit)

    def load(self) -> Load:
        """How busy its operators were within the last minute: skew, stragglers, and what autoscaling makes of it."""
        return read(Load, self._transport.get(path("applications", self.name, "load")))

    def state_tables(self) -> list[StateTable]:
        """The state tables, with schemas and row counts."""
        return self._transport.pages(path("applications", self.name, "state"), StateTable, None)

    def state(self, table: str) -> State:
        """Look-ups in one state table."""
        return State(self._transport, self.name, table)

    def events(self, last_event_id: str | None = None, *, kinds: Sequence[str] | None = None) -> Iterator[Event]:
        """Events as they happen, after ``last_event_id`` if given; reconnects by itself, and never ends."""
        return follow_events(self._transport, path("applications", self.name, "events"), last_event_id, kind=kinds)

    def logs(self, *, tail: int = 200, follow: bool = False, attempt: int | None = None) -> Iterator[str]:
        """Lines of the driver's log: the last ``tail``, and with ``follow`` those that come, until it is closed."""
        query = {"tail": tail, "follow": "true" if follow else "false", "attempt": attempt}
        with self._transport.stream(path("applications", self.name, "logs"), query) as response:
            yield from response.iter_lines()
