"""The catalog contract over the control plane's internal API.

While the control plane is away the driver keeps what it has and asks again, with capped back-off; since every call may
be repeated, an answer that was lost is asked for once more. Nothing is guessed and nothing is lost.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import httpx
from pydantic import BaseModel

from epochal.contracts.catalog import (
    AS_THE_EXECUTION,
    Catalog,
    Directive,
    DriverStatus,
    EpochCounts,
    EpochRecord,
    EpochTerms,
    Failure,
    ManifestReference,
    RecoveryPoint,
)
from epochal.contracts.identity import EpochKey
from epochal.errors import CatalogUnavailable, NotFound, OutcomeUnknown
from epochal.wire.bodies import Model, UnreadableAnswer, read
from epochal.wire.driver import (
    AbortEpoch,
    CompleteDirective,
    FinishAttempt,
    OpenEpoch,
    PrepareEpoch,
    ReadDirectives,
    UnknownDirective,
)
from epochal.wire.problems import error_by_name, problem_in, slug_of

log = logging.getLogger("epochal.driver")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
_REPEAT_STATUS = frozenset({429, 500, 502, 503, 504})
_REPEAT_SLUGS = frozenset({CatalogUnavailable.slug, OutcomeUnknown.slug})


class HttpCatalog(Catalog):
    """One execution and attempt, over HTTP.

    ``patience_seconds``: how long a call is repeated while the control plane is away; ``None`` is for ever. After it
    ``CatalogUnavailable`` is raised. ``Fenced``, ``Conflict`` and every other problem come back as the error class with
    that slug. Safe to use from several threads.
    """

    def __init__(
        self, control_plane: str, token: str, execution: str, attempt: int, *, patience_seconds: float | None = None
    ) -> None:
        self._client = httpx.Client(
            base_url=f"{control_plane.rstrip('/')}/internal/v1/executions/{execution}/attempts/{attempt}/",
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(30.0, connect=5.0),
            # The environment's proxies are for the world outside; the control plane is not there.
            trust_env=False,
        )
        self._patience_seconds = patience_seconds
        self._presence = _Presence(control_plane)

    def close(self) -> None:
        self._client.close()

    def begin_attempt(self) -> RecoveryPoint:
        return _read(RecoveryPoint, self._call("POST", "begin"))

    def open_epoch(self, epoch: int, parent: EpochKey | None) -> None:
        self._call("POST", "epochs", OpenEpoch(epoch=epoch, parent=parent))

    def prepare_epoch(
        self,
        epoch: int,
        parent: EpochKey | None,
        manifest: ManifestReference,
        counts: EpochCounts,
        terms: EpochTerms = AS_THE_EXECUTION,
    ) -> None:
        body = PrepareEpoch(parent=parent, manifest=manifest, counts=counts, terms=terms)
        self._call("POST", f"epochs/{epoch}/prepare", body)

    def commit_epoch(self, epoch: int) -> None:
        self._call("POST", f"epochs/{epoch}/commit")

    def abort_epoch(self, epoch: int, failure: Failure) -> None:
        self._call("POST", f"epochs/{epoch}/abort", AbortEpoch(failure=failure))

    def epoch(self, epoch: int) -> EpochRecord | None:
        try:
            return _read(EpochRecord, self._call("GET", f"epochs/{epoch}"))
        except NotFound:
            return None

    def heartbeat(self, status: DriverStatus) -> Sequence[Directive]:
        found = _read(ReadDirectives, self._call("POST", "heartbeat", status)).directives
        for directive in found:
            if isinstance(directive, UnknownDirective):
                self._refuse(directive)
        return [directive for directive in found if isinstance(directive, Directive)]

    def _refuse(self, directive: UnknownDirective) -> None:
        """Somebody waits for it: a directive that was only ignored would be under way for ever."""
        message = (
            f"This driver does not know how to carry out {directive.kind!r}: it is of another version than the control "
            "plane. Stop and start the application, and ask again."
        )
        log.error("directive %s is refused: %s", directive.id, message)
        self.complete(directive.id, None, Failure(type="unknown-directive", message=message))

    def complete(self, directive: str, head: ManifestReference | None, failure: Failure | None = None) -> None:
        self._call("POST", f"directives/{directive}", CompleteDirective(head=head, failure=failure))

    def finish(self, failure: Failure | None) -> None:
        self._call("POST", "finish", FinishAttempt(failure=failure))

    def _call(self, method: str, path: str, body: BaseModel | None = None) -> httpx.Response:
        """Ask until there is an answer that repeating would not change."""
        request: dict[str, Any] = {}
        if body is not None:
            request = {"content": body.model_dump_json(), "headers": {"Content-Type": "application/json"}}
        deadline = None if self._patience_seconds is None else time.monotonic() + self._patience_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                response = self._client.request(method, path, **request)
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                if response.is_success:
                    self._presence.answered()
                    return response
                if not _worth_repeating(response):
                    self._presence.answered()
                    raise error_by_name(response)
                reason = f"HTTP status {response.status_code}"
            self._presence.missed(reason)
            if deadline is not None and time.monotonic() + pause > deadline:
                raise CatalogUnavailable(
                    f"The control plane did not answer {path!r} for {self._patience_seconds:g} s ({reason}). Is it up?"
                )
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _read(model: type[Model], response: httpx.Response) -> Model:
    """Raises ``UnreadableAnswer``, also for what is no JSON at all."""
    try:
        answer = response.json()
    except ValueError:
        raise UnreadableAnswer(
            f"{response.request.url.path} was answered with what is no JSON, as no control plane does: a proxy between "
            "the driver and its control plane? Let drivers reach it directly, or by another URL."
        ) from None
    return read(model, answer)


def _worth_repeating(response: httpx.Response) -> bool:
    """Whether the same call may get another answer later: nobody is there, or nobody knows."""
    problem = problem_in(response)
    return response.status_code in _REPEAT_STATUS or (problem is not None and slug_of(problem) in _REPEAT_SLUGS)


class _Presence:
    """Says once that the control plane went away, and once that it is back."""

    def __init__(self, control_plane: str) -> None:
        self._control_plane = control_plane
        self._away_since: float | None = None
        self._lock = threading.Lock()

    def missed(self, reason: str) -> None:
        with self._lock:
            if self._away_since is not None:
                return
            self._away_since = time.monotonic()
        log.warning("control plane %s is away (%s); trying again until it is back", self._control_plane, reason)

    def answered(self) -> None:
        with self._lock:
            since, self._away_since = self._away_since, None
        if since is not None:
            log.warning("control plane %s is back after %.1f s", self._control_plane, time.monotonic() - since)
