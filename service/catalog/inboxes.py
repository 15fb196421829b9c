"""Inboxes: numbered calls of entries, read by drivers, and deleted when no snapshot can need them again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Self

import orjson
from sqlalchemy import ARRAY, ColumnElement, Select, String, any_, delete, func, insert, select, text
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import Session

from epochal.contracts.inbox import AcceptedCall
from epochal.engine.epoch import State
from epochal.errors import InboxFull, NotFound, RequestIdReused
from epochal.service.catalog.branch_writer import changed
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Application, Branch, Epoch, Execution, Inbox, InboxBatch, InboxCall
from epochal.service.catalog.types import database_now
from epochal.wire.internal_api import CALLS_AT_ONCE, CALLS_BYTES

NO_CALLS = b'"batches":[]}'
"""An empty page."""
_DIGEST_BYTES = 16
_NAMES_AT_ONCE = 5_000
"""Maximum number of values of one statement; SQLite accepts about thirty thousand."""


class NewCall(NamedTuple):
    """``arguments``: JSON text of an object in canonical form. ``digest``: hash of entry and arguments, which
    identifies a repeated call."""

    request_id: str
    arguments: str
    digest: bytes

    @classmethod
    def of(cls, entry: str, request_id: str, arguments: str) -> Self:
        return cls.all_of(entry, [request_id], [arguments])[0]

    @classmethod
    def all_of(cls, entry: str, request_ids: Sequence[str], arguments: Sequence[str]) -> tuple[Self, ...]:
        begun = hashlib.blake2b(f"{entry}\0".encode(), digest_size=_DIGEST_BYTES)
        digests = []
        for each in arguments:
            digest = begun.copy()
            digest.update(each.encode())
            digests.append(digest.digest())
        return tuple(map(cls, request_ids, arguments, digests))


@dataclass(frozen=True)
class NewCalls:
    """Calls of one entry that are added together, with distinct request ids."""

    entry: str
    calls: tuple[NewCall, ...]


Taken = Mapping[str, AcceptedCall]
"""Accepted calls by request id."""


class InboxRepository:
    """The inbox of one application, given by its id."""

    def __init__(self, session: Session, application: str) -> None:
        self._session = session
        self._application = application

    def take(self, posts: Sequence[NewCalls], most_waiting: int) -> list[Taken | RequestIdReused | InboxFull]:
        """For each of ``posts``, the numbers of its calls, or the error for which all were refused. A known request id
        identifies the call that was accepted before. The inbox is locked until the transaction ends.

        ``most_waiting``: maximum number of calls that wait for an epoch.
        """
        inbox = self._locked()
        known = self._known({call.request_id for post in posts for call in post.calls})
        through = self.taken_through()
        moment = database_now(self._session)
        # Based on the clock, so that numbers continue to increase after a fork, an import or a restore.
        number = max(inbox.last + 1, through + 1, _microseconds(moment))
        waiting = self._waiting(inbox, through)
        outcomes: list[Taken | RequestIdReused | InboxFull] = []
        batches, added = list[dict[str, object]](), list[tuple[str, int, Sequence[NewCall]]]()
        for post in posts:
            reused = _reused(post, known)
            new = [call for call in post.calls if call.request_id not in known]
            if reused is not None:
                outcomes.append(reused)
                continue
            if new and waiting + len(new) > most_waiting:
                outcomes.append(_full(waiting, len(new), most_waiting))
                continue
            if new:
                added.append((post.entry, number, new))
                inbox.accepted += len(new)
                batches.append(self._batch(post.entry, new, number, inbox.accepted, moment))
                for each, call in enumerate(new, number):
                    known[call.request_id] = AcceptedCall(each, post.entry, True), call.digest
                number, waiting = number + len(new), waiting + len(new)
                inbox.last = number - 1
            outcomes.append({call.request_id: known[call.request_id][0] for call in post.calls})
        if batches:
            self._session.flush()
            self._session.execute(insert(InboxBatch), batches)
            self._add(added)
        return outcomes

    def find(self, entry: str, request_id: str) -> AcceptedCall:
        """Raises ``NotFound``."""
        row = self._session.get(InboxCall, (self._application, request_id))
        if row is None or row.entry != entry:
            raise NotFound(
                f"Entry {entry!r} has no call with the request id {request_id!r}: it was never made, or has expired."
            )
        return AcceptedCall(row.number, row.entry, new=False)

    def page(self, after: int, through: int | None) -> tuple[int, Sequence[InboxBatch]]:
        """The highest number, and the first batches with numbers above ``after``, up to ``through``."""
        last = self._session.scalar(select(Inbox.last).where(Inbox.application == self._application)) or 0
        if last <= after or (through is not None and through <= after):
            return last, ()
        query = self._batches().where(InboxBatch.last > after).order_by(InboxBatch.last)
        if through is not None:
            query = query.where(InboxBatch.first <= through)
        found, calls, size = list[InboxBatch](), 0, 0
        for batch in self._session.scalars(query.execution_options(yield_per=20)):
            found.append(batch)
            calls, size = calls + batch.calls, size + len(batch.content)
            if calls >= CALLS_AT_ONCE or size >= CALLS_BYTES:
                break
        return last, found

    def expire(self, before: datetime, at_once: int) -> int:
        """Delete calls before ``before`` that no retained snapshot needs; returns the number of batches."""
        query = self._batches().where(InboxBatch.accepted_at < before).order_by(InboxBatch.last)
        kept_from = self._needed_after()
        if kept_from is not None:
            query = query.where(InboxBatch.last <= kept_from)
        batches, calls = list[InboxBatch](), 0
        for batch in self._session.scalars(query.execution_options(yield_per=20)):
            batches.append(batch)
            calls += batch.calls
            if calls >= at_once:
                break
        for batch in batches:
            for some in _chunks(json.loads(batch.content)["request_ids"]):
                gone = delete(InboxCall).where(InboxCall.application == self._application)
                changed(self._session, gone.where(self._among(InboxCall.request_id, some)))
        if batches:
            mine = InboxBatch.application == self._application
            changed(self._session, delete(InboxBatch).where(mine, InboxBatch.last.in_([each.last for each in batches])))
        return len(batches)

    def _locked(self) -> Inbox:
        values = {"application": self._application, "last": 0, "accepted": 0}
        dialect_insert = postgresql_insert if self._is_postgresql else sqlite_insert
        self._session.execute(dialect_insert(Inbox).values(values).on_conflict_do_nothing())
        return self._session.get_one(Inbox, self._application, with_for_update=True, populate_existing=True)

    def _known(self, request_ids: Collection[str]) -> dict[str, tuple[AcceptedCall, bytes]]:
        found = {}
        columns = select(InboxCall.request_id, InboxCall.number, InboxCall.entry, InboxCall.digest)
        for some in _chunks(list(request_ids)):
            mine = columns.where(InboxCall.application == self._application)
            for row in self._session.execute(mine.where(self._among(InboxCall.request_id, some))):
                found[row.request_id] = AcceptedCall(row.number, row.entry, False), row.digest
        return found

    def _among(self, column: ColumnElement[str] | object, values: Sequence[str]) -> ColumnElement[bool]:
        """A single parameter where possible: binding a thousand takes longer than the query."""
        named: ColumnElement[str] = column  # type: ignore[assignment]
        if self._is_postgresql:
            return named == any_(func.string_to_array(_SEPARATOR.join(values), _SEPARATOR, type_=ARRAY(String)))
        return named.in_(values)

    def taken_through(self) -> int:
        """The last call that epochs of the application's lineage have taken."""
        query = (
            select(Epoch.calls_through)
            .join(Branch, (Branch.head_branch == Epoch.branch) & (Branch.head_epoch == Epoch.epoch))
            .join(Application, Application.branch == Branch.id)
            .where(Application.id == self._application)
        )
        return self._session.scalar(query) or 0

    def _waiting(self, inbox: Inbox, through: int) -> int:
        first = select(InboxBatch.accepted - InboxBatch.calls).where(InboxBatch.application == self._application)
        before = self._session.scalar(first.where(InboxBatch.last > through).order_by(InboxBatch.last).limit(1))
        return 0 if before is None else inbox.accepted - before

    def _needed_after(self) -> int | None:
        """The lowest number after which a snapshot could continue; ``None`` if the application was deleted."""
        row = self._session.get_one(Application, self._application)
        if row.deleted_at is not None:
            return None
        least = (
            select(func.min(func.coalesce(Epoch.calls_through, 0)))
            .join(Branch, Branch.id == Epoch.branch)
            .where(
                Branch.application == self._application,
                Epoch.state.in_((State.PREPARED.value, State.COMMITTED.value)),
                Epoch.collected_at.is_(None),
            )
        )
        return self._session.scalar(least) or 0

    def _batches(self) -> Select[InboxBatch]:
        return select(InboxBatch).where(InboxBatch.application == self._application)

    def _batch(
        self, entry: str, calls: Sequence[NewCall], first: int, accepted: int, moment: datetime
    ) -> dict[str, object]:
        content = {
            "request_ids": [call.request_id for call in calls],
            "arguments": [call.arguments for call in calls],
        }
        return {
            "application": self._application,
            "first": first,
            "last": first + len(calls) - 1,
            "entry": entry,
            "calls": len(calls),
            "accepted": accepted,
            "content": orjson.dumps(content).decode(),
            "accepted_at": moment,
        }

    def _add(self, added: Sequence[tuple[str, int, Sequence[NewCall]]]) -> None:
        """The first number of each entry, and its calls."""
        mine: dict[str, object] = {"application": self._application}
        if self._is_postgresql:
            batches = [
                mine
                | {
                    "entry": entry,
                    "first": first,
                    "ids": _SEPARATOR.join([call.request_id for call in calls]),
                    "digests": b"".join([call.digest for call in calls]),
                }
                for entry, first, calls in added
            ]
            self._session.execute(_ADD, batches)
            return
        rows = [
            mine | {"entry": entry, "request_id": call.request_id, "number": number, "digest": call.digest}
            for entry, first, calls in added
            for number, call in enumerate(calls, first)
        ]
        self._session.execute(insert(InboxCall), rows)

    @property
    def _is_postgresql(self) -> bool:
        return self._session.get_bind().dialect.name == "postgresql"


_SEPARATOR = ","
"""Does not occur in request ids."""
_ADD = text(
    "INSERT INTO inbox_calls (application, request_id, number, entry, digest) "
    "SELECT :application, call.id, CAST(:first AS bigint) + call.place - 1, :entry, "
    f"substring(CAST(:digests AS bytea) FROM CAST(call.place - 1 AS int) * {_DIGEST_BYTES} + 1 FOR {_DIGEST_BYTES}) "
    f"FROM unnest(string_to_array(CAST(:ids AS text), '{_SEPARATOR}')) WITH ORDINALITY AS call (id, place)"
)
"""One parameter for all calls: the elements of a list would be bound one by one, in Python."""


def application_of(session: Session, execution: str) -> str:
    """The id of the execution's application. Raises ``NotFound``."""
    found = session.scalar(select(Execution.application).where(Execution.id == execution))
    if found is None:
        raise NotFound(f"There is no execution {execution!r}.")
    return found


def inbox_of_branch(session: Session, branch: str) -> str | None:
    """The id of the branch's application; ``None`` if the branch is unknown."""
    return session.scalar(select(Branch.application).where(Branch.id == branch))


def page_of(database: Database, execution: str, after: int, through: int | None) -> bytes:
    """An ``InboxPage`` as JSON, for the driver of an execution. Raises ``NotFound``."""
    with database.reading() as session:
        repository = InboxRepository(session, application_of(session, execution))
        last, batches = repository.page(after, through)
        taken = repository.taken_through()
    within = f'"taken":{taken},"batches":[{",".join(_page_parts(batches, after, through))}]'
    return f'{{"last":{last},{within}}}'.encode()


def newest_calls(database: Database, executions: Collection[str]) -> Mapping[str, int]:
    """The highest call number of the application of each of these executions."""
    query = select(Execution.id, Inbox.last).join(Inbox, Inbox.application == Execution.application)
    with database.reading() as session:
        return {row[0]: row[1] for row in session.execute(query.where(Execution.id.in_(executions)))}


def taken_by_committed(session: Session, application: Application) -> tuple[int, int]:
    """The latest committed epoch of the application's branch, and the number of the last call taken up to it; 0 if
    none."""
    query = select(Epoch.epoch, Epoch.calls_through).where(
        Epoch.branch == application.branch, Epoch.state == State.COMMITTED.value
    )
    row = session.execute(query.order_by(Epoch.epoch.desc()).limit(1)).one_or_none()
    return (0, 0) if row is None else (row.epoch, row.calls_through or 0)


def applications_with_old_calls(session: Session, before: datetime) -> Sequence[str]:
    """Ids of applications with calls that were accepted before ``before``."""
    query = select(InboxBatch.application).where(InboxBatch.accepted_at < before).distinct()
    return session.scalars(query).all()


def _page_parts(batches: Sequence[InboxBatch], after: int, through: int | None) -> Iterator[str]:
    for batch in batches:
        if batch.first > after and (through is None or batch.last <= through):
            yield f'{{"entry":"{batch.entry}","first":{batch.first},{batch.content[1:]}'
            continue
        content = json.loads(batch.content)
        begin = max(0, after + 1 - batch.first)
        end = batch.calls if through is None else min(batch.calls, through + 1 - batch.first)
        cut = {name: values[begin:end] for name, values in content.items()}
        yield json.dumps({"entry": batch.entry, "first": batch.first + begin, **cut}, ensure_ascii=False)


def _reused(post: NewCalls, known: Mapping[str, tuple[AcceptedCall, bytes]]) -> RequestIdReused | None:
    for call in post.calls if known else ():
        if call.request_id in known and known[call.request_id][1] != call.digest:
            return RequestIdReused(
                f"The request id {call.request_id!r} was used for another call, with other arguments or of another"
                " entry. Use a new one."
            )
    return None


def _full(waiting: int, new: int, most: int) -> InboxFull:
    return InboxFull(
        f"{waiting} calls are waiting for an epoch, and {new} more would exceed the maximum of {most}. Retry when "
        "the application has caught up; it may not be running.",
        retry_after_seconds=2,
    )


def _chunks(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), _NAMES_AT_ONCE):
        yield values[start : start + _NAMES_AT_ONCE]


def _microseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)
