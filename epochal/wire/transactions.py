from __future__ import annotations

from datetime import datetime

from epochal.wire.bodies import Answer, Body, Message


class TransactionDecision(Body):
    message: Message | None = None


class TransactionAnswer(Answer):
    """One sink's part of a prepared epoch.

    ``waiting_since`` and ``error``: since when and why it cannot be committed; both null while it is on its way, and
    while nothing runs. ``driver``: whether a running driver has said so; otherwise it is what the manifest names, and
    the sink may have committed it already, which the next start finds out.
    """

    branch: str
    epoch: int
    sink: str
    rows: int
    prepared_at: datetime | None
    waiting_since: datetime | None
    error: str | None
    driver: bool


class TransactionsAnswer(Answer):
    """By epoch and sink; there are at most ``max_uncommitted_epochs`` epochs."""

    items: list[TransactionAnswer]
