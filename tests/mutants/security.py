"""Wrong security: requests accepted too early, cursors accepted by other lists."""

from __future__ import annotations

import base64
from typing import Any

from tests.mutants.mutant import change, mutant

GATE = "tests/service/test_gate.py::test_"
FOREIGN = "tests/service/test_foreign_cursors.py"


@mutant(
    "gate: a body is read before the caller is authenticated",
    GATE + "no_endpoint_reads_a_body_without_a_token",
)
def _read_before_authentication() -> None:
    from epochal.service.api import gate

    def early(call: Any) -> Any:
        async def wrong(self: Any, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["method"] != "GET":
                await receive()
            await call(self, scope, receive, send)

        return wrong

    change(gate.Gate, "__call__", early)


@mutant(
    "gate: the role is checked after the idempotency layer has read the body or replayed an answer",
    f"{GATE}no_endpoint_reads_a_body_without_its_role {GATE}a_caller_that_lost_its_role_receives_no_replay",
)
def _role_after_idempotency() -> None:
    from epochal.errors import Forbidden
    from epochal.service import app as service_app
    from epochal.service.api import auditing, gate

    checked = gate.gate

    async def authenticated_only(request: Any) -> None:
        try:
            await checked(request)
        except Forbidden as error:
            if "idempotency-key" not in request.headers:
                raise
            request.scope["state"]["forbidden"] = error

    change(service_app, "gate", lambda _: authenticated_only)

    def late(call: Any) -> Any:
        async def wrong(self: Any, scope: Any, receive: Any, send: Any) -> None:
            if "forbidden" in scope["state"]:
                raise scope["state"]["forbidden"]
            await call(self, scope, receive, send)

        return wrong

    change(auditing.Audit, "__call__", late)


@mutant("cursors: the signature of a cursor is not verified", FOREIGN)
def _any_signature() -> None:
    from epochal.service.domain.pages import CursorSeal

    def wrong(_: Any) -> Any:
        def opened(self: CursorSeal, cursor: str) -> bytes:
            data = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            return data if data.startswith(b"[") else data[16:]

        return opened

    change(CursorSeal, "open", wrong)


@mutant("cursors: a cursor of one list is accepted by another list", FOREIGN)
def _any_list() -> None:
    from epochal.service.domain.pages import CursorSeal

    def wrong(signature: Any) -> Any:
        return lambda self, content: signature(CursorSeal(self.key, ()), content)

    change(CursorSeal, "_signature", wrong)


@mutant("cursors: a key is not looked up in the lineage of the application", FOREIGN)
def _any_lineage() -> None:
    from epochal.service.catalog.snapshots import SnapshotRepository

    change(SnapshotRepository, "of_application", lambda _: lambda self, application, key: self.reference(key))
