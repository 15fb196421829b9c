"""The thread that carries out long work of some kinds: one operation at a time, oldest first."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from sqlalchemy.orm import Session

from epochal.errors import CatalogUnavailable, EnvironmentProblem, EpochalError, OutcomeUnknown, TooManyRequests
from epochal.service.catalog.announcements import operation_changed
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Application, Operation
from epochal.service.catalog.operations import OperationRepository, operation_answer
from epochal.service.catalog.outcomes import failed, succeed
from epochal.service.domain.ports import EventSink
from epochal.wire.operations import OperationAnswer, OperationKind
from epochal.wire.problems import problem_of

log = logging.getLogger("epochal.operations")

PAUSE_SECONDS = 60.0
"""Between two looks for something to do, if nobody rings."""
RETRY_SECONDS = 2.0
"""After the catalog has not answered, or there was no place to build a pipeline."""
_PROGRESS_SECONDS = 1.0

Progress = Callable[[str], None]
Work = Callable[[str, Progress], dict[str, Any] | None]
"""Of the operation with this id: its result; ``None``, where it has ended the operation in a transaction of its own."""
Wish = Callable[[Session], tuple[Application | None, dict[str, Any]]]
"""Within the transaction that asks for an operation: the application it is for, and its arguments. ``None``: the
application is made by the operation; its name is the argument ``name``."""


class OperationWorker:
    """A :class:`~epochal.service.domain.ports.Component`. An operation that a control plane did not end is begun again
    from its beginning by the next one. ``tidy`` is done before each look for work."""

    def __init__(
        self,
        name: str,
        database: Database,
        events: EventSink,
        works: Mapping[OperationKind, Work],
        tidy: Callable[[], None] | None = None,
    ) -> None:
        self._database = database
        self._events = events
        self._works = works
        self._tidy = tidy
        self._bell = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """What is under way is begun again by the next control plane."""
        self._closing = True
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def begin(self, kind: OperationKind, by: str, wish: Wish) -> OperationAnswer:
        """Have it done. Raises what ``wish`` raises, and then nothing is asked for."""
        with self._database.writing() as session:
            application, arguments = wish(session)
            row = OperationRepository(session).add(kind, application, None, arguments, by, "waiting")
            name = _application_name(session, row)
            answer, event = operation_answer(row, name), operation_changed(name, row)
        self._events.publish(event)
        self._bell.set()
        return answer

    def work_off(self) -> None:
        """Carry out what waits, in the caller's thread. Raises ``CatalogUnavailable``, ``OutcomeUnknown``,
        ``TooManyRequests``: then it is to be tried again."""
        if self._tidy is not None:
            self._tidy()
        for id, kind in self._waiting():
            if not self._closing:
                self._carry_out(id, kind)

    def _run(self) -> None:
        while not self._closing:
            self._bell.clear()
            pause = PAUSE_SECONDS
            try:
                self.work_off()
            except (CatalogUnavailable, OutcomeUnknown, TooManyRequests) as error:
                log.warning("operations wait: %s", error)
                pause = RETRY_SECONDS
            except Exception:
                log.exception("the operations' thread goes on after an error")
            self._bell.wait(pause)

    def _waiting(self) -> list[tuple[str, str]]:
        with self._database.reading() as session:
            return [(row.id, row.kind) for row in OperationRepository(session).running(*self._works)]

    def _carry_out(self, id: str, kind: str) -> None:
        try:
            result = self._works[kind](id, self._progress(id))  # type: ignore[index]
            if result is not None:
                self._succeed(id, result)
        except (CatalogUnavailable, OutcomeUnknown, TooManyRequests):
            raise  # what has not landed still runs, by the catalog, and is begun again
        except EpochalError as error:
            self._fail(id, error)
        except Exception:
            log.exception("%s %s failed", kind, id)
            self._fail(id, EnvironmentProblem(f"The {kind} failed; the control plane's log says why. Try it again."))

    def _succeed(self, id: str, result: dict[str, Any]) -> None:
        with self._database.writing() as session:
            row = session.get_one(Operation, id)
            event = succeed(session.get_one(Application, row.application), row, result)
        self._events.publish(event)

    def _fail(self, id: str, error: EpochalError) -> None:
        """Nothing has failed that a control plane which stops has cut off."""
        if self._closing:
            return
        with self._database.writing() as session:
            row = session.get_one(Operation, id)
            event = failed(_application_name(session, row), row, problem_of(error))
        self._events.publish(event)

    def _progress(self, id: str) -> Progress:
        """Kept in the catalog, at most once a second."""
        last = 0.0

        def tell(text: str) -> None:
            nonlocal last
            if time.monotonic() - last < _PROGRESS_SECONDS:
                return
            last = time.monotonic()
            with self._database.writing() as session:
                session.get_one(Operation, id).progress = text

        return tell


def _application_name(session: Session, row: Operation) -> str:
    """No operation of a worker concerns the whole store."""
    return cast(str, OperationRepository(session).application_name(row))
