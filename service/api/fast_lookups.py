"""Shortcut for the common look-up: one key of the latest committed epoch, with a known token.

:class:`~epochal.service.api.lookup_protocol.LookupProtocol` calls it before an ASGI request exists. It answers only
requests that succeed, and never blocks. All others (an unknown token, table or key, a query string, any error) go to
the ordinary route, which reports the error.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from epochal.contracts.identity import EpochKey
from epochal.service.api.lookup_bodies import point_body, point_headers
from epochal.service.api.transport import REQUEST_ID, SAFE_REQUEST_ID
from epochal.service.queries.state.lookups import PointAnswer, etag, partial_etag
from epochal.service.runtime.authenticator import Authenticator
from epochal.service.runtime.metrics import Metrics
from epochal.service.runtime.replicas.follower import FollowedTable
from epochal.service.runtime.replicas.serving import ServedReplicas
from epochal.state.table import StateTable
from epochal.wire.projects import full_name, project_of

log = logging.getLogger("epochal.requests")

_REQUEST_ID = REQUEST_ID.encode()
_APPLICATIONS, _PROJECTS = b"/v1/applications/", b"/v1/projects/"
_SEGMENTS = 8  # "", v1, applications, {name}, state, {table}, keys, {key}
_OF_PROJECT = 2
"""Number of further segments that begin a path within a project: projects, {project}."""
_COUNT_SECONDS = 0.1
"""Maximum delay before look-ups are counted in the metrics."""
_KEPT = 1000
"""Maximum number of entries in each cache."""
_LONGEST_HEAD = 4096
_ORDINARY = frozenset({b"content-length", b"transfer-encoding", b"expect", b"if-none-match"})
"""Headers that need the ordinary route."""
_OF_ONE_REQUEST = frozenset({_REQUEST_ID, b"x-forwarded-for"})
"""Headers that differ between requests, or that name the original client."""


class FastAnswer(NamedTuple):
    """``content``: headers, an empty line and the body of an answer with status 200. ``request``: its id."""

    content: bytes
    request: bytes
    application: str


class _Place(NamedTuple):
    """``application``: the full name, which includes the project."""

    application: str
    table: str
    project: str


class _Form(NamedTuple):
    """Parts that all answers from one epoch of a table share, made by :mod:`lookup_bodies`."""

    at: EpochKey
    head: tuple[bytes, bytes]
    body: tuple[bytes, bytes, bytes]
    since: Mapping[str, int]

    @classmethod
    def of(cls, table: StateTable, at: EpochKey) -> _Form:
        answer = PointAnswer(b"\0", at, b"\0", False, "\0", since=table.partial_since)
        head = b"".join(b"%b: %b\r\n" % header for header in point_headers(answer))
        before, after = head.split(b"\0")
        beginning, between, end = point_body(table.id, answer, "read_committed").split(b"\0")
        return cls(at, (before, after), (beginning, between, end), answer.since)


class FastLookups:
    """Runs in the event loop. ``metrics`` receives the answers that are sent here."""

    def __init__(self, replicas: ServedReplicas, authenticator: Authenticator, metrics: Metrics) -> None:
        self._replicas = replicas
        self._authenticator = authenticator
        self._metrics = metrics
        self._counting = False
        self._forms: dict[_Place, _Form] = {}
        self._heads: dict[bytes, bytes] = {}
        """Heads without their first lines, with their tokens."""
        self._places: dict[bytes, _Place] = {}
        """Keyed by the part of the path that precedes the key."""
        # Without tokens the gate also checks the Host header, which only the ordinary route does.
        self.enabled = authenticator.enabled
        self._requests = secrets.token_hex(4).encode()
        self._numbers = itertools.count()

    def answer(self, url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> FastAnswer | None:
        """Answer a GET without a body; ``None`` leaves the request to the ordinary route. Header names are
        lower-case."""
        if not url.startswith((_APPLICATIONS, _PROJECTS)) or b"?" in url or b"#" in url:
            return None
        try:
            return self._answer(url, headers)
        except Exception as error:  # noqa: BLE001 (the ordinary route meets it, too, and it is answered there)
            log.debug("no shortcut for %r: %r", url, error)
            return None

    def again(self, line: bytes, head: bytes) -> FastAnswer | None:
        """Like :meth:`answer`, for a request whose head, except for its first line, equals one that was answered
        here before with a key in plain form. ``line``: the first line. Neither is parsed yet."""
        authorization = self._heads.get(head)
        if authorization is None or not line.startswith(b"GET ") or not line.endswith(b" HTTP/1.1"):
            return None
        before, _, key = line[4:-9].rpartition(b"/")
        place = self._places.get(before)
        if place is None or not self._authenticator.may_read(authorization, place.project):
            return None
        try:
            return self._found(place, key, None, plainly=True)
        except Exception as error:  # noqa: BLE001 (as above)
            log.debug("no shortcut for %r: %r", line, error)
            return None

    def remember(self, head: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Store the head, after its first line, of a request that was answered here. Clients send the same head for
        each request of a connection, except for the key."""
        if len(head) > _LONGEST_HEAD or any(name in _OF_ONE_REQUEST for name, _ in headers):
            return
        if len(self._heads) >= _KEPT:
            self._heads.clear()
        self._heads[head] = next(value for name, value in headers if name == b"authorization")

    def answered(self, answer: FastAnswer, began: float) -> None:
        """Record a sent answer. ``began``: start of the request, by ``time.perf_counter``."""
        self._metrics.looked_up(answer.application, time.perf_counter() - began)
        if not self._counting:
            self._counting = True
            asyncio.get_running_loop().call_later(_COUNT_SECONDS, self._count)

    def _count(self) -> None:
        self._counting = False
        self._metrics.take_in()

    def _answer(self, url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> FastAnswer | None:
        place, key = _named(url)
        if place is None:
            return None
        authorization = request = None
        for name, value in headers:
            if name == b"authorization":
                if authorization is not None:
                    return None
                authorization = value
            elif name == _REQUEST_ID:
                if request is not None or not SAFE_REQUEST_ID.fullmatch(value.decode("latin-1")):
                    return None
                request = value
            elif name in _ORDINARY:
                return None
        if authorization is None or not self._authenticator.may_read(authorization, place.project):
            return None
        answer = self._found(place, key, request, plainly=False)
        if answer is not None:
            self._note(url[: -len(key) - 1], place)
        return answer

    def _note(self, before: bytes, place: _Place) -> None:
        if before not in self._places:
            if len(self._places) >= _KEPT:
                self._places.clear()
            self._places[before] = place

    def _found(self, place: _Place, path: bytes, request: bytes | None, plainly: bool) -> FastAnswer | None:
        """``plainly``: look up only keys in the form that :class:`PointFormat` parses."""
        application, table, _ = place
        followed = self._replicas.table(application, table)
        if followed is None or followed.table.merges is not None:  # windows are shown differently
            return None
        key = followed.points.key(path)
        if key is None and not plainly:
            key = _other_key(followed, path.decode("ascii"))
        if key is None:
            return None
        at, row = followed.replica.get(key[0])
        if at is None or row is None:
            return None
        form = self._forms.get(place)
        if form is None or form.at is not at:
            if len(self._forms) >= _KEPT:
                self._forms.clear()
            form = self._forms[place] = _Form.of(followed.table, at)
        before, after = form.head
        beginning, between, end = form.body
        body = b"".join((beginning, key[1], between, followed.format.value_json(row), end))
        if request is None:
            request = b"%s%08x" % (self._requests, next(self._numbers))
        tag = etag(row)
        if form.since:
            tag = partial_etag(tag, form.since)
        length = b"content-length: %d\r\nx-request-id: " % len(body)
        content = b"".join((before, tag.encode(), after, length, request, b"\r\n\r\n", body))
        return FastAnswer(content, request, application)


def _named(url: bytes) -> tuple[_Place | None, bytes]:
    """Table and key of a path; ``None`` if the path is not a look-up or has an invalid name."""
    of_project = url.startswith(_PROJECTS)
    first = _OF_PROJECT if of_project else 0
    segments = url.split(b"/", _SEGMENTS - 1 + first)
    if len(segments) != _SEGMENTS + first:
        return None, b""
    resource, name, state, table, keys, key = segments[2 + first :]
    if (resource, state, keys) != (b"applications", b"state", b"keys"):
        return None, b""
    application = name.decode("ascii")
    if of_project:
        application = full_name(segments[3].decode("ascii"), application)
    return _Place(application, table.decode("ascii"), project_of(application)), key


def _other_key(followed: FollowedTable, path: str) -> tuple[bytes, bytes] | None:
    """Like :meth:`PointFormat.key`, for keys in any spelling. Raises ``InvalidKey``."""
    format = followed.format
    key = format.path_key(path)
    return (format.encode_key(key), format.key_json(key)) if format.is_whole(key) else None
