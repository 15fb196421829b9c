"""Expiry of catalog rows by policy: events, calls, the audit log, sessions. One control plane at a time runs it."""

from __future__ import annotations

import logging
from datetime import timedelta

from epochal.service.catalog.audit import AuditRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.events import EventRepository
from epochal.service.catalog.inboxes import InboxRepository, applications_with_old_calls
from epochal.service.catalog.sessions import SessionLinkRepository, SessionRepository
from epochal.service.catalog.types import now
from epochal.service.domain.setting_sections import Kept, Sessions

log = logging.getLogger("epochal.housekeeping")

EXPIRY_SECONDS = 60.0
_AT_ONCE = 1_000
"""Maximum number of rows per transaction: drivers write between two of them."""


class CatalogExpiry:
    """Each method does a piece of work of bounded length, and returns ``True`` if more work remains."""

    def __init__(self, database: Database, kept: Kept, sessions: Sessions = Sessions()) -> None:
        self._database = database
        self._kept = kept
        self._sessions = sessions

    def expire_events(self) -> bool:
        with self._database.reading() as session:
            lacking = EventRepository(session).lacks_positions()
        if lacking:
            # An event can be compared with a listener's position only after its own position is assigned.
            with self._database.writing() as session:
                return EventRepository(session).assign_positions() > 0
        before = now() - timedelta(days=self._kept.events_days)
        with self._database.reading() as session:
            expirable = EventRepository(session).expirable(self._kept.events, before)
        removed = 0
        for application, newest in expirable.items():
            with self._database.writing() as session:
                removed += EventRepository(session).remove(application, newest, _AT_ONCE)
        if removed:
            log.debug("%d events have expired", removed)
        return removed > 0

    def expire_calls(self) -> bool:
        before = now() - timedelta(days=self._kept.calls_days)
        with self._database.reading() as session:
            applications = applications_with_old_calls(session, before)
        removed = 0
        for application in applications:
            with self._database.writing() as session:
                removed += InboxRepository(session, application).expire(before, _AT_ONCE)
        if removed:
            log.debug("%d batches of calls have expired", removed)
        return removed > 0

    def expire_audit(self) -> bool:
        before = now() - timedelta(days=self._kept.audit_days)
        with self._database.reading() as session:
            if not AuditRepository(session).has_expired(before):
                return False
        with self._database.writing() as session:
            removed = AuditRepository(session).expire(before, _AT_ONCE)
        if removed:
            log.info("%d entries of the audit log have expired", removed)
        return removed > 0

    def expire_sessions(self) -> bool:
        moment = now()
        used_since = moment - self._sessions.longest_pause
        with self._database.reading() as session:
            if not SessionRepository(session).ended(moment, used_since, 1):
                return False
        with self._database.writing() as session:
            removed = SessionRepository(session).expire(moment, used_since, _AT_ONCE)
        if removed:
            log.debug("%d sessions have ended", removed)
        return removed > 0

    def expire_session_links(self) -> bool:
        moment = now()
        with self._database.reading() as session:
            if not SessionLinkRepository(session).has_expired(moment):
                return False
        with self._database.writing() as session:
            removed = SessionLinkRepository(session).expire(moment, _AT_ONCE)
        if removed:
            log.debug("%d sign-in links have expired", removed)
        return removed > 0
