"""A command's connection to the control plane, and waiting for operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from epochal.cli.output import Output
from epochal.client import Application, Client, Operation
from epochal.errors import Conflict


@dataclass(frozen=True)
class Session:
    """A client and the output of the command."""

    client: Client
    output: Output

    def wait(self, operation: Operation, doing: str) -> Operation:
        """Wait for an operation and show its progress. Raises its error."""
        with self.output.busy(doing) as progress:
            return self.client.operations.wait(operation, lambda now: progress(now.progress or ""))

    def wait_until_running(self, name: str) -> Application:
        """Wait until the application runs, and show its progress. Raises its error."""
        with self._seen(f"Starting {name}") as progress:
            return self.client.applications.wait(name, on_progress=progress)

    def wait_until_processed(self, name: str) -> Application:
        """Wait until the application has processed the available input, and show its progress.

        Raises its error, and ``Conflict`` if it was stopped earlier.
        """
        with self._seen(f"Running {name}") as progress:
            application = self.client.applications.wait(name, "ended", on_progress=progress)
        execution = self.client.application(name).executions.get(str(application.execution))
        if execution.stop_requested_at is not None:
            raise Conflict(
                f"Application {name} was stopped before it had processed all available input. Continue with "
                f"`epochal start {name} --available-now`."
            )
        return application

    @contextmanager
    def _seen(self, doing: str) -> Iterator[Callable[[Application], None]]:
        with self.output.busy(doing) as progress:
            yield lambda now: progress(_progress(now))


def _progress(application: Application) -> str:
    epoch = None if application.head is None else f"epoch {application.head.epoch}"
    return " · ".join(part for part in (application.state, epoch, application.detail) if part)


chosen_project: ContextVar[str | None] = ContextVar("chosen_project", default=None)
"""Value of ``epochal --project``."""


@contextmanager
def connected(url: str | None, as_json: bool, project: str | None = None) -> Iterator[Session]:
    """Connect to the control plane. ``project`` takes precedence over ``epochal --project``."""
    output = Output.make(as_json)
    with Client(url, project=project or chosen_project.get(), waiting=output.answered) as client:
        yield Session(client, output)
