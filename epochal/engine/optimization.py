"""Directives ``optimize``: compactions of the tables that sinks write, one after another, beside the epochs.

A directive is delivered until it is answered, also to the next attempt, which begins it again: a compaction that was
interrupted has changed nothing, and one that was done leaves nothing to do.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from epochal.background.worker import BackgroundWorker
from epochal.contracts.backend import SinkBackend
from epochal.contracts.catalog import Catalog, Directive, Failure, OptimizeOrder, OptimizeResult
from epochal.engine.failures import failure_of
from epochal.engine.program import CurrentProgram
from epochal.errors import EpochalError, NotFound

log = logging.getLogger(__name__)


@dataclass
class Optimizations:
    """Carries out the directives in a thread, and answers them in the thread of the loop."""

    catalog: Catalog
    current: CurrentProgram
    worker: BackgroundWorker = field(default_factory=lambda: BackgroundWorker("epochal-optimize"))
    _latest: _Optimization | None = field(default=None, init=False)

    def carry_out(self, directive: Directive) -> None:
        """Begin the compaction of a directive, or answer it. To be called with each delivery."""
        if self._latest is None or (self._latest.ended and self._latest.directive != directive.id):
            self._latest = self._begun(directive)
        latest = self._latest
        if latest is not None and latest.ended and latest.directive == directive.id:
            self._latest = None
            self.catalog.complete(directive.id, None, latest.failure, latest.result)

    def stop(self) -> None:
        """Begin no further compaction. One that is under way ends with the process, without effect on epochs."""
        self.worker.stop(0)

    def _begun(self, directive: Directive) -> _Optimization | None:
        """``None`` if the worker does not take it yet; the next delivery tries again."""
        sink = OptimizeOrder.model_validate(directive.arguments, extra="ignore").sink
        backend = self.current.program.participants.sinks.get(sink)
        begun = _Optimization(self.catalog, directive.id, sink, backend)
        if backend is None:
            begun.run()
            return begun
        if not self.worker.begin(begun.run):
            return None
        log.info("directive %s: the table of sink %s is compacted", directive.id, sink)
        return begun


@dataclass
class _Optimization:
    catalog: Catalog
    directive: str
    sink: str
    backend: SinkBackend | None
    result: OptimizeResult | None = field(default=None, init=False)
    failure: Failure | None = field(default=None, init=False)

    @property
    def ended(self) -> bool:
        return self.result is not None or self.failure is not None

    def run(self) -> None:
        try:
            if self.backend is None:
                raise NotFound(f"The version that runs has no sink {self.sink!r}.")
            found = self.backend.optimize(self._note)
            self.result = OptimizeResult(
                sink=self.sink,
                files_removed=found.files_removed,
                files_added=found.files_added,
                bytes_removed=found.bytes_removed,
                bytes_added=found.bytes_added,
                version=found.version,
            )
        except Exception as error:  # noqa: BLE001  the directive is answered with it; epochs continue
            log.warning("directive %s: the table of sink %s was not compacted: %s", self.directive, self.sink, error)
            self.failure = failure_of(error)

    def _note(self, progress: str) -> None:
        try:
            self.catalog.note_progress(self.directive, progress)
        except EpochalError as error:
            log.debug("the progress of directive %s was not taken: %s", self.directive, error)
