"""Calls of applications' entries, until nothing can go back to before they were taken."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from epochal.service.catalog.models.base import Base


class Inbox(Base):
    """The inbox of an application; its row is the lock of what comes in, so that numbers are seen in their order.

    ``last``: the highest number that was given to a call. ``accepted``: how many calls there have been in all.
    """

    __tablename__ = "inboxes"

    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), primary_key=True)
    last: Mapped[int] = mapped_column(BigInteger)
    accepted: Mapped[int] = mapped_column(BigInteger)


class InboxBatch(Base):
    """Calls of one entry that came together: the numbers ``first`` to ``last``, without a gap.

    ``accepted``: as of the inbox, with these. ``content``: ``{"request_ids": [..], "arguments": [..]}``, the arguments
    of each call as the JSON text of an object.
    """

    __tablename__ = "inbox_batches"

    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), primary_key=True)
    last: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    first: Mapped[int] = mapped_column(BigInteger)
    entry: Mapped[str] = mapped_column(String(63))
    calls: Mapped[int]
    accepted: Mapped[int] = mapped_column(BigInteger)
    content: Mapped[str] = mapped_column(Text)
    accepted_at: Mapped[datetime]

    __table_args__ = (Index("ix_inbox_batches_accepted_at", "accepted_at"),)


class InboxCall(Base):
    """The call with a request id, of which an application has one. ``digest``: of its entry and arguments."""

    __tablename__ = "inbox_calls"

    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), primary_key=True)
    request_id: Mapped[str] = mapped_column(String(200), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)
    entry: Mapped[str] = mapped_column(String(63))
    digest: Mapped[bytes] = mapped_column(LargeBinary)
