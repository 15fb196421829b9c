"""Every call that changes something is written down before it is answered, also a refused one."""

from __future__ import annotations

import logging

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from epochal.errors import EpochalError
from epochal.service.api.access import changes_something
from epochal.service.catalog.audit import AuditRepository
from epochal.service.catalog.database import Database
from epochal.service.domain.permissions import Principal

logger = logging.getLogger("epochal.audit")


class Audit:
    """ASGI middleware. Whether an endpoint changes something is known from the scope that it requires."""

    def __init__(self, app: ASGIApp, database: Database) -> None:
        self._app = app
        self._database = database

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start" and changes_something(scope.get("endpoint")):
                await run_in_threadpool(self._note, scope, message["status"])
            await send(message)

        await self._app(scope, receive, send_and_note)

    def _note(self, scope: Scope, outcome: int) -> None:
        state = scope["state"]
        principal = state.get("principal")
        token = principal.name if isinstance(principal, Principal) else None
        action = f"{scope['method']} {getattr(scope.get('route'), 'path', scope['path'])}"
        try:
            with self._database.writing() as session:
                AuditRepository(session).add(token, action, scope["path"], outcome, state["request_id"])
        except EpochalError as error:
            # The call itself is done: it must be answered, and the log is the second place to look.
            logger.error("%s by %s: %s, not in the audit log: %s", action, token, outcome, error.message)
