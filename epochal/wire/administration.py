from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from epochal.wire.bodies import Answer, Body, Name, Open


class NodeAnswer(Answer):
    """One process that ``epochal up`` is, on the same catalog."""

    id: str = Field(description="Another one after each start.")
    role: Open[Literal["control", "query"]]
    state: Open[Literal["alive", "gone"]] = Field(
        description="`gone`: not heard for ten seconds; it did not stop in order. Left out after an hour."
    )
    version: str
    host: str
    process: int
    url: str = Field(description="Where people reach it.")
    internal_url: str | None = Field(description="Where drivers reach it; null: it does not answer drivers.")
    started_at: datetime
    heartbeat_at: datetime = Field(description="By the catalog's clock.")


class AuditChange(Answer):
    """One field of what people decide, before the call and after it; ``None``: there was, or is, nothing. Long values
    are cut. ``subject``: of what, such as ``version 3``, which is compared with the version before it."""

    subject: str
    field: str
    before: JsonValue = None
    after: JsonValue = None


class AuditEntryAnswer(Answer):
    """One mutating call. ``outcome`` is the HTTP status that it was answered with; ``token`` and ``token_id`` the name
    and the id of the caller's token; ``address`` where the caller's connection came from; ``request`` the answer's
    ``X-Request-Id``."""

    at: datetime
    token: str | None
    token_id: str | None = None
    address: str | None = None
    request: str = ""
    action: str
    target: str
    outcome: int
    changes: tuple[AuditChange, ...] = ()
    """What the call has changed; empty of calls that were refused, and of entries of before."""
    changes_left_out: int = 0
    """So many more."""


WebhookKind = Literal["epoch.committed", "epoch.aborted", "attempt.failed", "application.failed"]
WebhookState = Literal["active", "failing", "disabled"]


class CreateWebhook(Body):
    url: Annotated[str, StringConstraints(max_length=2000, pattern=r"^https?://[^\s/?#]+[^\s]*$")] = Field(
        description="Where events are posted to; https, except within a network that is trusted."
    )
    kinds: list[WebhookKind] = Field(min_length=1, max_length=10, description="Which events.")
    applications: list[Name] | None = Field(
        default=None, max_length=1000, description="Of these applications only, which need not be there yet."
    )
    secret: Annotated[str, StringConstraints(min_length=16, max_length=200, pattern=r"^[\x21-\x7e]*$")] | None = Field(
        default=None, description="What signatures are made with. Without, one is made, and is in the answer."
    )


class WebhookAnswer(Answer):
    id: str
    url: str
    kinds: list[Open[WebhookKind]]
    applications: list[str] | None
    state: Open[WebhookState] = Field(
        description="`failing`: the last delivery failed, and is tried again. `disabled`: deliveries failed for a day, "
        "or the receiver answered 410; what waited is gone, and nothing more is sent."
    )
    waiting: int = Field(description="So many events wait to be delivered.")
    dropped: int = Field(
        description="So many were given up: the oldest of more than 10,000, or those of a disabled one."
    )
    failing_since: datetime | None
    last_error: str | None = Field(description="Why the last failed delivery failed.")
    delivered_at: datetime | None = Field(description="When the last event was taken.")
    disabled_at: datetime | None
    created_at: datetime
    created_by: str


class NewWebhookAnswer(WebhookAnswer):
    secret: str | None = Field(description="Said once: a repeated request answers null.")
