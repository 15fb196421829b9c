"""Applications: create, start, stop, fork and delete them, and access their resources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from epochal.client.bundles import Exports, copied_into
from epochal.client.calls import Entries
from epochal.client.drawn import StateTables
from epochal.client.events import follow_events
from epochal.client.exchanges import BUILD_SECONDS, path
from epochal.client.graphs import ApplicationGraph
from epochal.client.models import (
    Application,
    ApplicationLag,
    Event,
    LifecycleItem,
    Lineage,
    Lineages,
    Load,
    Operation,
    Placement,
    StateTable,
)
from epochal.client.operations import poll
from epochal.client.snapshots import (
    Annotations,
    Epochs,
    Executions,
    Savepoints,
    Sinks,
    Snapshots,
    Transactions,
    draw_lineage,
    read_lineage,
)
from epochal.client.standing_queries import Queries
from epochal.client.state import State, zoned
from epochal.client.transport import Transport
from epochal.client.versions import Rollback, Versions
from epochal.errors import EpochalError, OptionError
from epochal.wire.bodies import read
from epochal.wire.projects import is_project, local_name, project_of
from epochal.wire.versions import accepted


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
        self.sinks = Sinks(transport, name)
        self.queries = Queries(transport, name)
        self.rollback = Rollback(transport, name)
        self.exports = Exports(transport, name)
        self.versions = Versions(transport, name)
        self.annotations = Annotations(transport, name)

    def get(self) -> Application:
        return read(Application, self._transport.get(path("applications", self.name)))

    def lineage(
        self,
        limit: int | None = None,
        *,
        fold: bool = False,
        slices: bool = False,
        cursor: str | None = None,
        branch: str | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> Lineage:
        """The tree of snapshots around this application, newest first; at most ``limit`` nodes, or all.

        ``fold``: fold each run of plain epochs to one node. ``slices``: include the input on every edge. ``branch``:
        only epochs ``first`` to ``last`` of this branch, which are not folded.
        """
        span = {"branch": branch, "first": first, "last": last}
        return read_lineage(self._transport, self.name, limit, fold=fold, slices=slices, cursor=cursor, span=span)

    def lineage_drawing(self, format: Literal["dot", "svg"], limit: int = 100) -> str:
        """The newest ``limit`` nodes of the folded lineage as Graphviz source or SVG."""
        return draw_lineage(self._transport, self.name, format, limit)

    def load(self) -> Load:
        """Load of the operators within the last minute: skew, stragglers, and the decision of autoscaling."""
        return read(Load, self._transport.get(path("applications", self.name, "load")))

    def placement(self) -> Placement:
        """Where the subtasks of the latest epoch ran, and the bytes of state that they read."""
        return read(Placement, self._transport.get(path("applications", self.name, "placement")))

    def graph(self) -> ApplicationGraph:
        """The graph of the current version, with rates, busy time and state of its nodes."""
        application = self.get()
        # A failed upgrade is newer than the version that runs.
        found = (each for each in self.versions.list() if each.number == application.version)
        version = next(found, None)
        load = self.load()
        return ApplicationGraph(
            application=self.name,
            graph=None if version is None else version.graph,
            load=None if load.reported_at is None else load,
            tables=self.state_tables(),
        )

    def state_tables(self) -> StateTables:
        """State tables with schemas and row counts."""
        return StateTables(self._transport.pages(path("applications", self.name, "state"), StateTable, None))

    def state(self, table: str) -> State:
        """Look-ups in one state table."""
        return State(self._transport, self.name, table)

    def lifecycle(self, limit: int | None = 50) -> list[LifecycleItem]:
        """Operations that changed what runs, and recoveries from failed or lost drivers, newest first."""
        return self._transport.pages(path("applications", self.name, "lifecycle"), LifecycleItem, limit)

    def events(self, last_event_id: str | None = None, *, kinds: Sequence[str] | None = None) -> Iterator[Event]:
        """Stream events, starting after ``last_event_id`` if given. Reconnects automatically and never ends.

        ``kinds``: only events of these kinds; by default all but ``load``."""
        return follow_events(self._transport, path("applications", self.name, "events"), last_event_id, kind=kinds)

    def logs(
        self, *, tail: int = 200, follow: bool = False, attempt: int | None = None, branch: str | None = None
    ) -> Iterator[str]:
        """Lines of the driver's log: the last ``tail`` lines, and with ``follow`` new lines until the log is closed.

        ``attempt``: by default the latest. ``branch``: that of the attempt; by default the newest with such an attempt.
        """
        query = {"tail": tail, "follow": "true" if follow else "false", "attempt": attempt, "branch": branch}
        with self._transport.stream(path("applications", self.name, "logs"), query) as response:
            yield from response.iter_lines()


class Applications:
    """``client.applications``. Long-running calls return an operation; wait for it with ``client.operations.wait``.

    ``if_match``: a revision (:attr:`Application.revision`). If the application has another revision, nothing is changed
    and ``PreconditionFailed`` is raised.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def lineages(self, names: Sequence[str], limit: int = 100, cursor: str | None = None) -> Lineages:
        """One page of the folded lineage of several applications (at most 50), newest first."""
        query = {"application": list(names), "limit": limit, "cursor": cursor}
        return read(Lineages, self._transport.get("/v1/lineage", query))

    def lags(self, limit: int | None = None) -> list[ApplicationLag]:
        """The lag of each source of all applications of the project, by name of the application."""
        return self._transport.pages("/v1/lags", ApplicationLag, limit)

    def create(
        self,
        name: str,
        artifact: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        configuration: Mapping[str, Any] | None = None,
        start: bool = True,
        available_now: bool = False,
        drain: bool = True,
    ) -> Application:
        """Build and analyse a registered artifact, given by its SHA-256, and create an application.

        ``available_now``: process the input available at the start, and stop. ``drain``: when all sources are bounded
        and have ended, a last epoch emits everything waiting for event time; the application cannot be started again.

        Raises ``NameTaken``, ``PipelineError``, ``ParameterError``, ``OptionError``.
        """
        body = {
            "name": name,
            "artifact": artifact,
            "parameters": dict(parameters or {}),
            "configuration": dict(configuration or {}),
            "start": start,
            "available_now": available_now,
            "drain": drain,
        }
        return read(Application, self._transport.post("/v1/applications", body, timeout_seconds=BUILD_SECONDS))

    def get(self, name: str) -> Application:
        return read(Application, self._transport.get(path("applications", name)))

    def list(self, limit: int | None = None) -> list[Application]:
        return self._transport.pages("/v1/applications", Application, limit)

    def delete(self, name: str, *, if_match: str | None = None) -> None:
        """Delete a stopped application. Raises ``Conflict`` if it is running."""
        self._transport.delete(path("applications", name), if_match)

    def start(
        self,
        name: str,
        savepoint: str | None = None,
        *,
        available_now: bool = False,
        drain: bool = True,
        if_match: str | None = None,
    ) -> Operation:
        """Start from the head or a savepoint. The operation succeeds when the driver runs; result: ``{execution,
        attempt}``.

        ``available_now``: process the input available at the start, and stop; see :meth:`wait`. ``drain``: as in
        :meth:`create`. Raises ``IncompatibleState`` if the application is drained.
        """
        body = {"savepoint": savepoint, "available_now": available_now, "drain": drain}
        return self._operation(name, "start", body, if_match)

    def stop(self, name: str, savepoint: str | None = None, *, if_match: str | None = None) -> Operation:
        """Stop at an epoch boundary, optionally with a savepoint. Result: ``{branch, epoch, savepoint}``."""
        return self._operation(name, "stop", {"savepoint": savepoint}, if_match)

    def restart(self, name: str, *, if_match: str | None = None) -> Operation:
        return self._operation(name, "restart", {}, if_match)

    def fork(
        self,
        source: str,
        name: str,
        *,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        at: datetime | None = None,
        parameters: Mapping[str, Any] | None = None,
        artifact: str | None = None,
        configuration: Mapping[str, Any] | None = None,
        shadow: bool = False,
        start: bool = True,
        message: str | None = None,
        accept_changed: Sequence[str] = (),
        accept_partial: Sequence[str] = (),
        into: str | None = None,
    ) -> Application:
        """Create an application from a snapshot of ``source`` without copying state.

        ``epoch``, ``savepoint``, ``tag`` or ``at`` (the latest snapshot at that time) selects the snapshot; the
        default is the head. ``parameters`` are merged over the source's. Raises ``Conflict`` if a sink has the
        source's target and the fork is not ``shadow`` (without sinks). ``accept_changed`` and ``accept_partial``: as
        in an upgrade.

        ``into``: another project. The fork is then a copy by export and import, which requires their roles and raises
        their errors; ``at`` and ``artifact`` raise ``OptionError``.
        """
        home = project_of(source) if "." in source else self._transport.location.project
        if into is not None and into != home:
            _check_copy(into, at, artifact)
            return copied_into(
                self._transport.of_project(home),
                local_name(source),
                self._transport.of_project(into),
                name,
                epoch=epoch,
                savepoint=savepoint,
                tag=tag,
                parameters=parameters,
                configuration=configuration,
                shadow=shadow,
                start=start,
                message=message,
                accept_changed=accept_changed,
                accept_partial=accept_partial,
            )
        body = {
            "name": name,
            "epoch": epoch,
            "savepoint": savepoint,
            "tag": tag,
            "at": None if at is None else zoned(at),
            "parameters": None if parameters is None else dict(parameters),
            "artifact": artifact,
            "configuration": None if configuration is None else dict(configuration),
            "shadow": shadow,
            "start": start,
            "message": message,
            "acceptance": accepted(accept_changed, accept_partial),
        }
        answer = self._transport.post(path("applications", source, "fork"), body, timeout_seconds=BUILD_SECONDS)
        return read(Application, answer)

    def wait(
        self,
        name: str,
        until: Literal["running", "committed", "ended"] = "running",
        *,
        on_progress: Callable[[Application], None] | None = None,
        timeout_seconds: float | None = None,
    ) -> Application:
        """Wait until a started application runs, has committed its first epoch, or has ended.

        ``running`` and ``committed`` also return when the application has ended earlier. ``on_progress`` receives each
        state that is read.

        Raises ``EpochalError`` with the reason when the application fails, and ``NotYetCommitted`` after
        ``timeout_seconds``.
        """
        seen = poll(
            self.get(name),
            lambda: self.get(name),
            until=_CONDITIONS[until],
            on_progress=on_progress,
            timeout_seconds=timeout_seconds,
            what=f"application {name} ({until})",
        )
        if seen.state == "failed":
            reason = "no reason was recorded" if seen.failure is None else seen.failure.message
            raise EpochalError(f"Application {name} failed: {reason}")
        return seen

    def _operation(self, name: str, verb: str, body: Mapping[str, Any], if_match: str | None) -> Operation:
        return read(Operation, self._transport.post(path("applications", name, verb), body, if_match=if_match))


def _check_copy(into: str, at: datetime | None, artifact: str | None) -> None:
    if not is_project(into):
        raise OptionError(f"Invalid project name {into!r}; `epochal project list` shows the projects.")
    if at is not None:
        raise OptionError(
            "A fork into another project requires an epoch, a savepoint or a tag; a time is not supported."
        )
    if artifact is not None:
        raise OptionError(
            "A fork into another project has the code of its source. Create it without starting it, and "
            "upgrade it there."
        )


def _has_started(application: Application) -> bool:
    return application.state not in ("created", "starting")


def _has_ended(application: Application) -> bool:
    return application.state not in ("created", "starting", "running", "stopping")


def _has_committed(application: Application) -> bool:
    return application.head is not None or application.state not in ("starting", "running", "stopping")


_CONDITIONS: Mapping[str, Callable[[Application], bool]] = {
    "running": _has_started,
    "committed": _has_committed,
    "ended": _has_ended,
}
