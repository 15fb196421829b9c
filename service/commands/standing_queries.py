"""Standing queries: checked against the columns of the running version, numbered, and passed to its driver.

The snapshot contains the active queries: they fork and roll back with it. The catalog has the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from epochal.contracts.catalog import QueryCommand, QueryCommandKind
from epochal.contracts.conditions import microseconds
from epochal.declarations.intervals import fixed_interval
from epochal.errors import Conflict, Forbidden, InvalidInput, NotFound, OptionError, PipelineError
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.events import announce_operation
from epochal.service.catalog.executions import ENDED
from epochal.service.catalog.operations import OperationRepository, operation_answer
from epochal.service.catalog.standing_queries import QueryCommandRepository
from epochal.service.catalog.types import database_now
from epochal.service.catalog.versions import VersionRepository
from epochal.service.commands.applications import Lifecycle
from epochal.service.domain.permissions import Principal
from epochal.service.runtime.standing_queries import StandingQueriesInForce, found_in
from epochal.standing_queries.active import StandingQuery
from epochal.standing_queries.query import DEFAULT, Limits
from epochal.wire.operations import OperationAnswer
from epochal.wire.standing_queries import AddQuery
from epochal.wire.tokens import Role

OPERATOR = "standing_queries"


@dataclass(frozen=True)
class Place:
    """An operator that answers standing queries, as declared by the running version."""

    operator: str
    columns: Mapping[str, str]
    limits: Limits


class QueryService:
    def __init__(self, database: Database, lifecycle: Lifecycle, in_force: StandingQueriesInForce) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self._in_force = in_force

    def add(self, application: str, request: AddQuery, by: str) -> OperationAnswer:
        """Raises ``QueryRefused``, ``NotFound`` for an operator, ``Conflict`` if the application is not running or
        has the maximum number of queries, ``OptionError`` for an interval, ``InvalidInput`` if the operator is
        ambiguous."""
        from epochal.standing_queries.binding import bound

        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            execution = ApplicationRepository(session).execution(row)
            if execution is None:
                raise _not_running(application)
            graph = VersionRepository(session).numbered(row, execution.version).graph
            moment = database_now(session)  # the clock with which every attempt compares its own
        place = _place(application, graph or {}, request.operator)
        query = bound(request.query, place.columns, place.limits)
        active = self._in_force.of(application).queries
        if sum(each.operator == place.operator for each in active.queries) >= place.limits.queries:
            raise Conflict(
                f"Application {application!r} has {place.limits.queries:,} standing queries in {place.operator!r}, "
                "the maximum that it allows. Drop one first."
            )
        expires_at = None if request.expires_after is None else _after(moment, request.expires_after)

        def command(number: int) -> QueryCommand:
            return QueryCommand(
                number=number,
                kind="add",
                query=number,
                by=by,
                operator=place.operator,
                text=request.query,
                bound=query.json,
                expires_at=expires_at,
            )

        return self._order(application, active.through, command, by)

    def change(self, application: str, query: int, kind: QueryCommandKind, by: Principal) -> OperationAnswer:
        """Raises ``NotFound``, ``Forbidden`` if the query has another owner, ``Conflict`` if the application is not
        running."""
        active = self._in_force.of(application).queries
        _check_owner(found_in(active, application, query), kind, by)

        def command(number: int) -> QueryCommand:
            return QueryCommand(number=number, kind=kind, query=query, by=by.name)

        return self._order(application, active.through, command, by.name)

    def _order(
        self, application: str, inherited: int, command: Callable[[int], QueryCommand], by: str
    ) -> OperationAnswer:
        with self._database.writing() as session:
            applications, operations = ApplicationRepository(session), OperationRepository(session)
            row = applications.locked(application)
            execution = applications.execution(row)
            if execution is None or execution.state in ENDED or execution.state == "stopping":
                raise _not_running(application)
            commands = QueryCommandRepository(session)
            order = command(commands.next_number(row, inherited))
            arguments = {"command": order.kind, "query": order.query, "number": order.number}
            operation = operations.add(
                "query", row, execution, arguments, by, _waits_for(commands.under_way(execution))
            )
            commands.add(row, order, operation)
            operations.direct(execution, operation, "query", order.model_dump(mode="json"))
            answer = operation_answer(operation, application)
            announce_operation(session, application, operation)
            waiting = operation.execution
        self._lifecycle.wake(waiting)
        return answer


def _check_owner(query: StandingQuery, kind: QueryCommandKind, by: Principal) -> None:
    if query.owner != by.name and not by.may(Role.ADMIN):
        raise Forbidden(
            f"Standing query {query.id} belongs to {query.owner!r}; the token {by.name!r} may not {kind} it. Ask "
            f"{query.owner!r} or an admin."
        )


def _place(application: str, graph: Mapping[str, Any], named: str | None) -> Place:
    nodes = {node["id"]: node for node in graph.get("nodes", ())}
    found = {node["name"]: node for node in nodes.values() if node["type"] == OPERATOR}
    if named is not None and named not in found:
        raise NotFound(
            f"Application {application!r} has no standing queries named {named!r}; "
            f"it has {', '.join(map(repr, found)) or 'none'}."
        )
    if not found:
        raise NotFound(
            f"Application {application!r} accepts no standing queries: its pipeline has no stream.standing_queries(..)."
        )
    if named is None and len(found) > 1:
        raise InvalidInput(
            f"Application {application!r} has several operators for standing queries: choose one of "
            f"{', '.join(map(repr, found))}."
        )
    node = found[named] if named is not None else next(iter(found.values()))
    said = node["description"]
    shortest, longest = (fixed_interval("windows", text, least=1) for text in said["windows"])
    limits = replace(
        DEFAULT, queries=said["limit"], groups=said["groups"], least_window=shortest, greatest_window=longest
    )
    return Place(node["name"], nodes[node["inputs"][0]].get("columns") or {}, limits)


def _after(moment: datetime, text: str) -> int:
    """Microseconds from the Unix epoch."""
    try:
        length = fixed_interval("expires_after", text, least=1)
        return microseconds(moment + timedelta(microseconds=length))
    except (PipelineError, OverflowError) as error:
        raise OptionError(str(error)) from None


def _waits_for(epoch: int | None) -> str:
    return "waiting for an epoch" if epoch is None else f"waiting for the epoch after {epoch}, which is running"


def _not_running(application: str) -> Conflict:
    return Conflict(
        f"Application {application!r} is not running; standing queries begin and end with an epoch of its driver. "
        "Start it first."
    )
