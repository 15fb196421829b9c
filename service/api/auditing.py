"""Audit log: each mutating call is recorded in the transaction that makes the change; refused calls are recorded,
too."""

from __future__ import annotations

import logging
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from epochal.errors import EpochalError
from epochal.service.api.access import is_audited
from epochal.service.api.gate import OVER_RATE
from epochal.service.api.project_paths import application_in, audited_project, called_path
from epochal.service.catalog.audit import AuditedCall, AuditRepository, CallDetails, Caller, auditing
from epochal.service.catalog.database import Database
from epochal.service.catalog.idempotency import making
from epochal.service.domain.permissions import Principal

logger = logging.getLogger("epochal.audit")


class Audit:
    """ASGI middleware. The role that an endpoint requires determines whether it changes something."""

    def __init__(self, app: ASGIApp, database: Database) -> None:
        self._app = app
        self._database = database

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        call = AuditedCall()
        if is_audited(scope.get("endpoint")):
            # The gate has admitted the caller: from here on, every commit of the call includes the audit entry.
            call.details = details_of(scope)

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start" and call.details is not None:
                call.over = True
                await _note(self._database, call, scope, message["status"])
            await send(message)

        with auditing(call):
            await self._app(scope, receive, send_and_note)


class RefusedCalls:
    """Records the calls that the gate refuses."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def __call__(self, scope: Scope, outcome: int) -> None:
        if is_audited(scope.get("endpoint")) and not scope["state"].get(OVER_RATE, False):
            await _note(self._database, AuditedCall(), scope, outcome)


async def _note(database: Database, call: AuditedCall, scope: Scope, outcome: int) -> None:
    details = call.details = call.details or details_of(scope)
    if call.landed is None or outcome != details.expected:
        with making(None):  # recording a call is not an effect of the call
            await run_in_threadpool(_write, database, call, details, outcome)


def _write(database: Database, call: AuditedCall, details: CallDetails, outcome: int) -> None:
    try:
        with database.writing() as session:
            AuditRepository(session).settle(call, outcome)
    except EpochalError as error:
        # Either nothing changed, or the change has its entry: answer the call, and log the rest.
        caller = details.caller.token
        logger.error(
            "%s by %s: %s; the audit log could not be written: %s", details.action, caller, outcome, error.message
        )


def details_of(scope: Scope) -> CallDetails:
    """The entry of a call, by the caller that is authenticated now."""
    route: Any = scope.get("route")
    principal = scope["state"].get("principal")
    known = isinstance(principal, Principal)
    client = scope.get("client")
    return CallDetails(
        Caller(
            token=principal.name if known else None,
            token_id=principal.id if known else None,
            address=None if client is None else str(client[0])[:64],
        ),
        action=f"{scope['method']} {getattr(route, 'path', scope['path'])}",
        target=called_path(scope),
        expected=getattr(route, "status_code", None) or 200,
        request=scope["state"]["request_id"],
        project=audited_project(scope),
        application=application_in(scope),
    )
