"""Administration: control planes and query nodes, the audit log, webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from epochal.wire.bodies import Answer, Body, Name, Open


class NodeAnswer(Answer):
    """A control plane or query node of the catalog."""

    id: str = Field(description="Id of the process; changes with each start.")
    role: Open[Literal["control", "query"]]
    state: Open[Literal["alive", "gone"]] = Field(
        description="`gone`: no heartbeat for ten seconds without an orderly stop. Omitted after an hour."
    )
    version: str
    host: str
    process: int
    url: str = Field(description="URL for clients.")
    internal_url: str | None = Field(description="URL for drivers; null if it does not serve drivers.")
    started_at: datetime
    heartbeat_at: datetime = Field(description="Time of the last heartbeat by the catalog's clock.")


class AuditChange(Answer):
    """A changed field with its values before and after the call; ``None``: no value. Long values are truncated.
    ``subject``: the changed object, such as ``version 3``, which is compared with the previous version."""

    subject: str
    field: str
    before: JsonValue = None
    after: JsonValue = None


class AuditEntryAnswer(Answer):
    """A mutating call. ``id`` grows with time; ``application``: name of the application in the path, or of the one
    that the call created; ``outcome``: HTTP status of the answer; ``token`` and ``token_id``: name and id of the
    caller's token; ``address``: address of the caller's connection; ``request``: ``X-Request-Id`` of the answer."""

    id: int = 0
    at: datetime
    application: str | None = None
    token: str | None
    token_id: str | None = None
    address: str | None = None
    request: str = ""
    action: str
    target: str
    outcome: int
    changes: tuple[AuditChange, ...] = ()
    """Changes made by the call; empty for refused calls."""
    changes_left_out: int = 0
    """Number of further changes."""


WebhookKind = Literal["epoch.committed", "epoch.aborted", "attempt.failed", "application.failed"]
WebhookState = Literal["active", "failing", "disabled"]


class CreateWebhook(Body):
    url: Annotated[str, StringConstraints(max_length=2000, pattern=r"^https?://[^\s/?#]+[^\s]*$")] = Field(
        description="URL that receives events. Use https, except within a trusted network."
    )
    kinds: list[WebhookKind] = Field(min_length=1, max_length=10, description="Kinds of events to post.")
    applications: list[Name] | None = Field(
        default=None, max_length=1000, description="Post events of these applications only. They need not exist yet."
    )
    secret: Annotated[str, StringConstraints(min_length=16, max_length=200, pattern=r"^[\x21-\x7e]*$")] | None = Field(
        default=None, description="Secret for signatures. If omitted, a new one is generated and returned."
    )


class WebhookAnswer(Answer):
    id: str
    url: str
    kinds: list[Open[WebhookKind]]
    applications: list[str] | None
    state: Open[WebhookState] = Field(
        description="`failing`: the last delivery failed and is retried. `disabled`: deliveries failed for a "
        "day, or the "
        "receiver answered 410; waiting events were deleted, and no further events are sent."
    )
    waiting: int = Field(description="Number of events waiting for delivery.")
    dropped: int = Field(
        description="Number of dropped events: the oldest of more than 10,000, or those of a disabled webhook."
    )
    failing_since: datetime | None
    last_error: str | None = Field(description="Error of the last failed delivery.")
    delivered_at: datetime | None = Field(description="Time of the last successful delivery.")
    disabled_at: datetime | None
    created_at: datetime
    created_by: str


class NewWebhookAnswer(WebhookAnswer):
    secret: str | None = Field(description="Returned once; a repeated request returns null.")
