"""The worker of background operations: claims them, carries them out, renews its claims and cancels."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ValidationError

from epochal.background.service import BackgroundService
from epochal.errors import (
    CatalogUnavailable,
    EnvironmentProblem,
    EpochalError,
    OutcomeUnknown,
    StorageFull,
    StoreRefuses,
    StoreUnavailable,
    TooManyRequests,
)
from epochal.service.catalog.database import Database
from epochal.service.catalog.operation_claims import Claim, OperationClaims, OperationRequest
from epochal.service.domain.events import OPERATION, Topics
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.nodes import Node
from epochal.service.domain.operations import RENEW_SECONDS, Interrupted
from epochal.service.runtime.launchers.processes import LocalProcess
from epochal.service.runtime.machine import this_machine
from epochal.wire.operations import OperationAnswer, OperationKind
from epochal.wire.projects import DEFAULT_PROJECT

log = logging.getLogger("epochal.operations")

LOOK_SECONDS = 1.0
"""Interval between checks for operations to claim; hints trigger a check earlier, and may be lost."""
TIDY_SECONDS = 10.0
"""Maximum interval between two runs of a lane's ``before``."""
RETRY_SECONDS = 2.0
"""Pause after the catalog or the store was unavailable, or all places for building pipelines were occupied."""

Arguments = TypeVar("Arguments", bound=BaseModel)
_TRY_AGAIN = (CatalogUnavailable, OutcomeUnknown, TooManyRequests, StoreUnavailable)
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Verb(Generic[Arguments]):
    """Implementation of one kind of operation. Both functions may be called again for work that is already done.

    ``run`` calls the claim's ``check`` or ``progress`` frequently and does not catch their exceptions. It returns the
    result, or ``None`` if it has ended the operation with the claim's ``decide``. ``sweep`` removes everything that
    ``run`` has left behind, in this process or in one that was killed.
    """

    kind: OperationKind
    arguments: type[Arguments]
    run: Callable[[Claim, Arguments], BaseModel | None]
    sweep: Callable[[Claim, Arguments], None] = lambda claim, arguments: None


@dataclass
class _Lane:
    """Verbs that share a thread: one operation at a time, oldest first. ``before`` runs before each check."""

    verbs: dict[str, Verb[Any]]
    before: Callable[[], None]
    service: BackgroundService


class OperationWorker:
    """A :class:`~epochal.service.domain.ports.Component`.

    An operation that a control plane has not finished is restarted from the beginning by another one: immediately if
    the first process has terminated on this machine or was closed in order; otherwise when its claim has expired.
    """

    def __init__(self, database: Database, look_seconds: float = LOOK_SECONDS, node: Node | None = None) -> None:
        """``node``: the control plane that this worker belongs to. Operations that fail for lack of space are left to
        another one."""
        self._closing = threading.Event()
        self._claims = OperationClaims(database, _this_process(), _has_terminated, self._closing.is_set, node)
        self._lanes: dict[str, _Lane] = {}
        self._held: dict[str, Claim] = {}
        self._looking = BackgroundService("operations-look", self._look, look_seconds, delay=look_seconds)

    def register(self, lane: str, verbs: Sequence[Verb[Any]], before: Callable[[], None] = lambda: None) -> None:
        """Register verbs. Call it before :meth:`open`."""
        service = BackgroundService(f"operations-{lane}", lambda: self._step(self._lanes[lane]), TIDY_SECONDS)
        self._lanes[lane] = _Lane({verb.kind: verb for verb in verbs}, before, service)

    def open(self) -> None:
        for lane in self._lanes.values():
            lane.service.start()
        self._looking.start()

    def close(self) -> None:
        """Stop. The next control plane restarts unfinished operations."""
        self._closing.set()
        for lane in self._lanes.values():
            lane.service.stop(0)
        for lane in self._lanes.values():
            lane.service.stop()
        self._looking.stop()

    def begin(
        self, kind: OperationKind, by: str, request: OperationRequest, project: str = DEFAULT_PROJECT
    ) -> OperationAnswer:
        """Record an operation to be carried out. ``project``: used if no application exists yet. Raises the errors of
        ``request``, and ``Conflict``; no operation is then recorded."""
        begun = self._claims.begin(kind, by, request, project)
        self._ring(kind)
        return begun

    def cancel(self, id: str, by: str) -> OperationAnswer:
        """Cancel an operation: it ends soon and leaves nothing behind. Raises ``NotFound``, ``Conflict``.
        Idempotent."""
        changed = self._claims.cancel(id, by)
        claim = self._held.get(id)
        if claim is not None:
            claim.cancel()
        self._ring(cast(OperationKind, changed.kind))
        return changed

    def work_off(self, lane: str) -> None:
        """Carry out waiting operations in the caller's thread. Raises ``CatalogUnavailable``, ``OutcomeUnknown``,
        ``TooManyRequests``: the caller retries."""
        self._work_off(self._lanes[lane])

    def heard(self, topics: Topics) -> None:
        """Operations have changed in some process: wake the lanes, since one may have to be started or cancelled."""
        if OPERATION in topics:
            for lane in self._lanes.values():
                lane.service.wake()

    def _ring(self, kind: OperationKind) -> None:
        for lane in self._lanes.values():
            if kind in lane.verbs:
                lane.service.wake()

    def _look(self) -> None:
        """Check for all lanes with one query. If the catalog is unavailable, the lanes themselves report it."""
        kinds = [kind for lane in self._lanes.values() for kind in lane.verbs]
        with suppress(CatalogUnavailable):
            for kind in self._claims.waiting(kinds):  # type: ignore[arg-type]
                self._ring(kind)

    def _step(self, lane: _Lane) -> float | None:
        try:
            self._work_off(lane)
        except _TRY_AGAIN as error:
            log.warning("operations wait: %s", error)
            return RETRY_SECONDS
        return None

    def _work_off(self, lane: _Lane) -> None:
        lane.before()
        while not self._closing.is_set():
            claim = self._claims.claim(lane.verbs)  # type: ignore[arg-type]
            if claim is None:
                return
            self._held[claim.id] = claim
            try:
                self._carry_out(lane.verbs[claim.kind], claim)
            finally:
                del self._held[claim.id]

    def _carry_out(self, verb: Verb[Any], claim: Claim) -> None:
        try:
            with _renewing(claim):
                self._do(verb, claim)
        except Interrupted as reason:
            log.info("operation %s is restarted: %s", claim.id, reason)
            self._release(claim)
        except _TRY_AGAIN as error:
            # If this is not recorded, the operation still counts as running and is restarted.
            self._release(claim, f"waiting: {error.message}" if isinstance(error, StoreUnavailable) else None)
            raise

    def _do(self, verb: Verb[Any], claim: Claim) -> None:
        try:
            arguments = verb.arguments.model_validate(claim.arguments)
        except ValidationError as error:
            self._failed(claim, error)
            return
        try:
            claim.check()
            result = verb.run(claim, arguments)
            if result is not None:
                claim.succeed(result)
        except StoreRefuses as error:
            self._failed(claim, error)
        except (Interrupted, *_TRY_AGAIN):
            raise
        except Exception as error:  # noqa: BLE001 any error ends the operation
            if claim.is_cancelled:
                self._sweep(verb, claim, arguments)
            else:
                self._failed(claim, error)

    def _sweep(self, verb: Verb[Any], claim: Claim, arguments: BaseModel) -> None:
        try:
            verb.sweep(claim, arguments)
        except (Interrupted, *_TRY_AGAIN):
            raise
        except Exception as error:  # noqa: BLE001
            self._failed(claim, error)
        else:
            claim.swept()

    def _failed(self, claim: Claim, error: Exception) -> None:
        """Record a failure, unless the operation was interrupted because this control plane closes."""
        if self._closing.is_set():
            raise Interrupted("the control plane is stopping")
        if _is_out_of_space(error):
            self._without_room(claim, error)
            return
        if isinstance(error, EpochalError):
            claim.fail(error)
            return
        log.error("%s %s failed", claim.kind, claim.id, exc_info=error)
        text = f"The {claim.kind} failed; the control plane's log contains the reason. Retry the operation."
        claim.fail(EnvironmentProblem(text))

    def _without_room(self, claim: Claim, error: Exception) -> None:
        """Each control plane tries the operation once, since each has its own disks."""
        kind: type[EpochalError] = type(error) if isinstance(error, EpochalError) else EnvironmentProblem
        why = error.message if isinstance(error, EpochalError) else _no_space(error)
        log.warning("%s %s: %s", claim.kind, claim.id, why)
        tried = claim.leave_to_others(why)
        if tried is not None:
            at = f" at {', '.join(tried)}" if tried else ""
            claim.fail(kind(f"{why} The {claim.kind} was tried{at}. Make room there, then ask for it again."))

    def _release(self, claim: Claim, progress: str | None = None) -> None:
        """Release the claim; if that fails, the claim expires."""
        try:
            with suppress(Interrupted):
                claim.release() if progress is None else claim.release(progress)
        except EpochalError as error:
            log.warning("operation %s: %s", claim.id, error)


def _is_out_of_space(error: BaseException | None) -> bool:
    """``True`` if the error, or one of its causes, reports a full disk or quota."""
    while error is not None:
        if isinstance(error, StorageFull) or (isinstance(error, OSError) and error.errno in _FULL):
            return True
        error = error.__cause__
    return False


def _no_space(error: Exception) -> str:
    file = getattr(error, "filename", None)
    return f"There is no space left for {file}." if file else "There is no space left on a disk of the control plane."


@contextmanager
def _renewing(claim: Claim) -> Iterator[None]:
    """Renew the claim, also while the work makes no calls for a long time."""

    def renew() -> None:
        try:
            claim.renew()
        except Interrupted:
            renewing.stop()  # the work detects that itself
        except EpochalError as error:
            log.warning("operation %s: %s", claim.id, error)

    renewing = BackgroundService("operations-renew", renew, RENEW_SECONDS, delay=RENEW_SECONDS)
    renewing.start()
    try:
        yield
    finally:
        renewing.stop(timeout=None)


def _this_process() -> str:
    """Host, boot, process and worker. Process ids are comparable only if the first two are equal."""
    process = LocalProcess.find(os.getpid())
    return f"{_this_machine()}/{process}/{new_id()}"


def _has_terminated(holder: str) -> bool:
    machine, _, rest = holder.rpartition("/")[0].rpartition("/")
    return machine == _this_machine() and not LocalProcess.parse(rest).exists()


def _this_machine() -> str:
    here = this_machine()
    return f"{here.host}/{here.boot}"
