"""The catalog contract over the control plane's internal API.

While no control plane answers, the driver retains its work and retries with capped back-off. Every call is idempotent:
after a lost answer the call is repeated, at another control plane if there are several. No outcome is guessed and no
work is lost.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import httpx
from pydantic import BaseModel

import epochal
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
    OptimizeResult,
    RecoveryPoint,
)
from epochal.contracts.identity import EpochKey
from epochal.contracts.inbox import InboxPage
from epochal.contracts.measurements import DriverReport
from epochal.driver.decided import Decided
from epochal.driver.orders import DriverOrders
from epochal.errors import CatalogFull, CatalogUnavailable, Conflict, NotFound, OutcomeUnknown
from epochal.wire.bodies import Model, UnreadableAnswer, read
from epochal.wire.http import ControlPlanes, HttpCalls, Outcome
from epochal.wire.internal_api import (
    CALLS_HEADER,
    LISTEN_SECONDS,
    PROTOCOL,
    PROTOCOL_HEADER,
    RESULT_HEADER,
    VERSION_HEADER,
    AbortEpoch,
    CompleteDirective,
    DirectiveProgress,
    FetchOrders,
    FinishAttempt,
    NewestDirective,
    OpenEpoch,
    PrepareEpoch,
    ReadDirectives,
    UnknownDirective,
)
from epochal.wire.problems import error_by_name, problem_in, slug_of

log = logging.getLogger("epochal.driver")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
CONNECT_SECONDS = 2.0
ALONE_SECONDS = 30.0
"""Answer timeout with a single control plane."""
AMONG_SEVERAL_SECONDS = 5.0
"""Answer timeout with several control planes: every call may be repeated at another one."""
HEARTBEAT_SECONDS = 2.0
_CALLS_SECONDS = 3.0
"""Additional timeout for an answer with some megabytes of calls."""
_REPEAT_STATUS = frozenset({429, 500, 502, 503, 504})
_REPEAT_SLUGS = frozenset({CatalogUnavailable.slug, CatalogFull.slug, OutcomeUnknown.slug})


class HttpCatalog(Catalog):
    """The catalog of one execution and attempt, over HTTP, through any of several control planes.

    Calls use one control plane until it fails to answer. Heartbeats rotate over all control planes, which probes each
    of them, and their answers contain the current list of control planes.

    ``patience_seconds``: timeout for repeating a call while every control plane is unavailable; ``None``: no timeout.
    After the timeout, raises ``CatalogUnavailable``. ``Fenced``, ``Conflict`` and every other problem are raised as the
    error class with that slug. Thread-safe.
    """

    def __init__(
        self,
        control_planes: Sequence[str],
        token: str,
        execution: str,
        attempt: int,
        *,
        patience_seconds: float | None = None,
    ) -> None:
        self._path = f"/internal/v1/executions/{execution}/attempts/{attempt}/"
        headers = {
            "Authorization": f"Bearer {token}",
            PROTOCOL_HEADER: str(PROTOCOL),
            VERSION_HEADER: epochal.__version__,
        }
        # The environment's proxies are for external addresses; the control plane is internal.
        self._calls = HttpCalls(
            ControlPlanes(control_planes),
            headers,
            httpx.Timeout(ALONE_SECONDS, connect=CONNECT_SECONDS),
            trust_environment=False,
        )
        self._patience_seconds = patience_seconds
        self._presence = _Presence(self._calls.control_planes)
        self._heard_by = ""
        self._decided = Decided()

    @property
    def control_planes(self) -> tuple[str, ...]:
        """URLs of the control planes, according to the last heartbeat's answer."""
        return self._calls.control_planes.urls

    def close(self) -> None:
        self._calls.close()

    def artifact(self, sha256: str) -> bytes:
        """The code of a version of this application, unverified. Raises ``NotFound``, ``ArtifactError``."""
        return self._call("GET", f"artifacts/{sha256}").content

    def orders(self, token: str) -> DriverOrders:
        """Fetch this driver's orders. ``token``: the credential for its later calls, returned as part of the orders."""
        body = FetchOrders(token_sha256=hashlib.sha256(token.encode()).hexdigest())
        return _read(DriverOrders, self._call("POST", "orders", body)).model_copy(update={"token": token})

    def begin_attempt(self) -> RecoveryPoint:
        point = _read(RecoveryPoint, self._call("POST", "begin"))
        self._decided.check_head(point)
        return point

    def open_epoch(self, epoch: int, parent: EpochKey | None) -> None:
        with self._not_gone_back():
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
        with self._not_gone_back():
            self._call("POST", f"epochs/{epoch}/prepare", body, headers=_beside(terms))
        self._decided.add(manifest.key)

    def commit_epoch(self, epoch: int) -> None:
        with self._not_gone_back():
            self._call("POST", f"epochs/{epoch}/commit")

    def abort_epoch(self, epoch: int, failure: Failure) -> None:
        with self._not_gone_back():
            self._call("POST", f"epochs/{epoch}/abort", AbortEpoch(failure=failure))

    def epoch(self, epoch: int) -> EpochRecord | None:
        try:
            return _read(EpochRecord, self._call("GET", f"epochs/{epoch}"))
        except NotFound:
            return None

    @contextmanager
    def _not_gone_back(self) -> Iterator[None]:
        """On a conflict, check whether the catalog was reset to an earlier state.

        Raises ``CatalogWentBack`` if it was, and the original ``Conflict`` otherwise.
        """
        try:
            yield
        except Conflict:
            if (latest := self._decided.latest) is not None:
                self._decided.check_record(latest, self.epoch(latest.epoch))
            raise

    def heartbeat(self, status: DriverStatus) -> Sequence[Directive]:
        """Call each control plane at most once. Raises ``CatalogUnavailable`` if none of them answers in time."""
        planes = self._calls.control_planes
        self._heard_by = planes.after(self._heard_by)
        answer = _read(ReadDirectives, self._call("POST", "heartbeat", status, heartbeat=True))
        planes.replace(answer.control_planes)
        for directive in answer.directives:
            if isinstance(directive, UnknownDirective):
                self._refuse(directive)
        return [directive for directive in answer.directives if isinstance(directive, Directive)]

    def listen(self, after: str) -> str | None:
        """Wait for a directive newer than ``after`` and return its id; ``None`` if none arrived before the timeout.

        Makes one call. Raises ``CatalogUnavailable``, and ``EpochalError`` if the control plane lacks the call.
        """
        response = self._held("directives", {"after": after, "seconds": LISTEN_SECONDS}, HEARTBEAT_SECONDS)
        return _read(NewestDirective, response).newest

    def _held(self, path: str, query: Mapping[str, object], more_seconds: float) -> httpx.Response:
        """Make one call whose answer the control plane may delay by ``LISTEN_SECONDS``."""
        timeout = httpx.Timeout(LISTEN_SECONDS + more_seconds, connect=CONNECT_SECONDS)
        try:
            response = self._calls.once("GET", f"{self._path}{path}", query=query, timeout=timeout)
        except httpx.TransportError as error:
            raise CatalogUnavailable(f"No control plane could be reached: {error}.") from error
        if not response.is_success:
            raise error_by_name(response)
        return response

    def calls(self, after: int, through: int) -> InboxPage:
        """The first page of calls of the application's entries with numbers above ``after``, up to ``through``."""
        return _read(InboxPage, self._call("GET", f"calls?after={after}&through={through}"))

    def new_calls(self, after: int) -> InboxPage:
        """Wait for calls above ``after``; returns an empty page if none arrived before the timeout.

        Makes one call. Raises ``CatalogUnavailable``, and ``EpochalError`` if the control plane lacks the call.
        """
        response = self._held("calls", {"after": after, "seconds": LISTEN_SECONDS}, HEARTBEAT_SECONDS + _CALLS_SECONDS)
        return _read(InboxPage, response)

    def _refuse(self, directive: UnknownDirective) -> None:
        """Complete the directive with a failure. An ignored directive would stay pending without end."""
        message = (
            f"This driver does not know how to carry out {directive.kind!r}: it is of another version than the control "
            "plane. Stop and start the application, and ask again."
        )
        log.error("directive %s is refused: %s", directive.id, message)
        self.complete(directive.id, None, Failure(type="unknown-directive", message=message))

    def report(self, report: DriverReport) -> None:
        """Send the report once, without repetition: the next report supersedes it."""
        self._send("report", report)

    def _send(self, path: str, body: BaseModel) -> None:
        """Make one call that may be lost."""
        headers = {"Content-Type": "application/json"}
        try:
            content = body.model_dump_json().encode()
            answer = self._calls.once("POST", f"{self._path}{path}", content=content, headers=headers, timeout=5.0)
        except httpx.TransportError as error:
            raise CatalogUnavailable(f"The control plane took no {path}: {type(error).__name__}: {error}") from error
        if not answer.is_success:
            raise error_by_name(answer)

    def complete(
        self,
        directive: str,
        head: ManifestReference | None,
        failure: Failure | None = None,
        result: OptimizeResult | None = None,
    ) -> None:
        body = CompleteDirective(head=head, failure=failure)
        self._call("POST", f"directives/{directive}", body, headers=_with_result(result))

    def note_progress(self, directive: str, progress: str) -> None:
        """Send the note once, without repetition."""
        self._send(f"directives/{directive}/progress", DirectiveProgress(progress=progress))

    def finish(self, failure: Failure | None) -> None:
        self._call("POST", "finish", FinishAttempt(failure=failure))

    def _call(
        self,
        method: str,
        path: str,
        body: BaseModel | None = None,
        *,
        heartbeat: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Repeat the call until its answer is final. Raises the answer's problem."""
        several = len(self._calls.control_planes) > 1
        seconds = HEARTBEAT_SECONDS if heartbeat else AMONG_SEVERAL_SECONDS if several else ALONE_SECONDS
        repeating = _Repeating(self._calls.control_planes, self._presence, self._patience_seconds, heartbeat)
        try:
            response = self._calls.call(
                method,
                self._path + path,
                repeating,
                content=None if body is None else body.model_dump_json().encode(),
                headers={**({} if body is None else {"Content-Type": "application/json"}), **(headers or {})},
                timeout=httpx.Timeout(seconds, connect=CONNECT_SECONDS),
                url=self._heard_by if heartbeat else None,
            )
        except httpx.TransportError as error:
            raise repeating.given_up(path) from error
        if response.is_success or not _worth_repeating(response):
            self._presence.answered()
            if response.is_success:
                return response
            raise error_by_name(response)
        raise repeating.given_up(path)


class _Repeating:
    """Retry policy of one call: repeat until the timeout; for a heartbeat, until each control plane was called once."""

    def __init__(
        self, control_planes: ControlPlanes, presence: _Presence, patience_seconds: float | None, once_each: bool
    ) -> None:
        self._control_planes = control_planes
        self._presence = presence
        self._patience_seconds = patience_seconds
        self._deadline = None if patience_seconds is None else time.monotonic() + patience_seconds
        self._once_each = once_each
        self._asked = 0
        self._pause = FIRST_PAUSE_SECONDS
        self._reason, self._full = "", False

    def pause(self, outcome: Outcome) -> float | None:
        if isinstance(outcome, httpx.Response):
            if not _worth_repeating(outcome):
                return None
            problem = problem_in(outcome)
            self._full = problem is not None and slug_of(problem) == CatalogFull.slug
            self._reason = f"HTTP status {outcome.status_code}" if problem is None else problem.detail
        else:
            self._full, self._reason = False, f"{type(outcome).__name__}: {outcome}"
        self._asked += 1
        if self._asked % len(self._control_planes) != 0:
            return 0.0
        self._presence.missed(self._reason)
        if self._once_each or (self._deadline is not None and time.monotonic() + self._pause > self._deadline):
            return None
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return pause

    def given_up(self, path: str) -> CatalogUnavailable:
        if self._full:
            return CatalogFull(self._reason)
        patience = "" if self._patience_seconds is None else f" for {self._patience_seconds:g} s"
        return CatalogUnavailable(f"No control plane answered {path!r}{patience} ({self._reason}). Is it up?")


def _beside(terms: EpochTerms) -> Mapping[str, str]:
    """Terms in headers, which an older control plane can ignore."""
    return {} if terms.calls_through is None else {CALLS_HEADER: str(terms.calls_through)}


def _with_result(result: OptimizeResult | None) -> Mapping[str, str]:
    """The result of a directive in a header, which an older control plane can ignore."""
    return {} if result is None else {RESULT_HEADER: json.dumps(result.model_dump())}


def _read(model: type[Model], response: httpx.Response) -> Model:
    """Parse an answer. Raises ``UnreadableAnswer``, also for an answer that is not JSON."""
    try:
        answer = response.json()
    except ValueError:
        raise UnreadableAnswer(
            f"{response.request.url.path} was not answered with JSON. A proxy may be between the driver and its "
            "control plane: let drivers connect directly, or use another URL."
        ) from None
    return read(model, answer)


def _worth_repeating(response: httpx.Response) -> bool:
    """Return true if the call may succeed later: the service is unavailable, or the outcome is unknown."""
    problem = problem_in(response)
    return response.status_code in _REPEAT_STATUS or (problem is not None and slug_of(problem) in _REPEAT_SLUGS)


class _Presence:
    """Logs once when no control plane answers, and once when one is available again."""

    def __init__(self, control_planes: ControlPlanes) -> None:
        self._control_planes = control_planes
        self._away_since: float | None = None
        self._lock = threading.Lock()

    def missed(self, reason: str) -> None:
        with self._lock:
            if self._away_since is not None:
                return
            self._away_since = time.monotonic()
        log.warning("control plane %s is away (%s); trying again until it is back", self._names, reason)

    def answered(self) -> None:
        with self._lock:
            since, self._away_since = self._away_since, None
        if since is not None:
            log.warning("control plane %s is back after %.1f s", self._names, time.monotonic() - since)

    @property
    def _names(self) -> str:
        return ", ".join(self._control_planes.urls)
